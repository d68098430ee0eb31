package fleet

import (
	"encoding/json"
	"fmt"
	"time"
)

// TimeFormat is how the API writes times: RFC 3339 in UTC with milliseconds.
const TimeFormat = "2006-01-02T15:04:05.000Z07:00"

// Time is a time that is written in the API's format. It scans from and into
// the database like time.Time.
type Time struct{ time.Time }

// At wraps a time.
func At(t time.Time) Time { return Time{t.UTC()} }

// AtPtr wraps an optional time.
func AtPtr(t *time.Time) *Time {
	if t == nil {
		return nil
	}
	v := At(*t)
	return &v
}

// MarshalJSON writes the API's format.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(TimeFormat) + `"`), nil
}

// UnmarshalJSON reads any RFC 3339 time.
func (t *Time) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("time: %w", err)
	}
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return fmt.Errorf("time: %w", err)
	}
	t.Time = v.UTC()
	return nil
}
