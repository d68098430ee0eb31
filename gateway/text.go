package gateway

import (
	"bytes"
	"encoding/json"
	"strings"
)

// storableJSON drops NUL from the strings of a document, since jsonb holds none.
// Firmware tables are full of them.
func storableJSON(b json.RawMessage) json.RawMessage {
	if !bytes.Contains(b, []byte(`\u0000`)) {
		return b
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return b
	}
	clean, err := json.Marshal(withoutNUL(v))
	if err != nil {
		return b
	}
	return clean
}

func withoutNUL(v any) any {
	switch x := v.(type) {
	case string:
		return strings.ReplaceAll(x, "\x00", "")
	case []any:
		for i := range x {
			x[i] = withoutNUL(x[i])
		}
		return x
	case map[string]any:
		clean := make(map[string]any, len(x))
		for k, e := range x {
			clean[strings.ReplaceAll(k, "\x00", "")] = withoutNUL(e)
		}
		return clean
	default:
		return v
	}
}
