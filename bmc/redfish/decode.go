package redfish

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"

	"github.com/bettercompute/compute/bmc"
)

// decode reads a resource into one of gofish's types. Members that services
// send with another type than the schema's are left out rather than costing
// the whole resource; their names are returned.
func decode[T any](raw json.RawMessage) (*T, []string, error) {
	v := new(T)
	if json.Unmarshal(raw, v) == nil {
		return v, nil, nil
	}
	fits := func(b []byte) bool { return json.Unmarshal(b, new(T)) == nil }
	kept, dropped := prune(raw, fits, func(b []byte) []byte { return b })
	v = new(T)
	return v, dropped, json.Unmarshal(kept, v)
}

// prune keeps the members of an object that fit where wrap puts them, looking
// into those that do not.
func prune(raw json.RawMessage, fits func([]byte) bool, wrap func([]byte) []byte) (json.RawMessage, []string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return json.RawMessage("{}"), nil
	}
	var dropped []string
	for k, val := range members {
		inside := func(b []byte) []byte {
			one, _ := json.Marshal(map[string]json.RawMessage{k: b}) // a map of valid JSON always encodes
			return wrap(one)
		}
		if fits(inside(val)) {
			continue
		}
		part, lost := prune(val, fits, inside)
		if len(val) > 0 && val[0] == '{' && fits(inside(part)) {
			members[k] = part
			for _, l := range lost {
				dropped = append(dropped, k+"/"+l)
			}
			continue
		}
		delete(members, k)
		dropped = append(dropped, k)
	}
	out, _ := json.Marshal(members) // as above
	slices.Sort(dropped)
	return out, dropped
}

// maxPages and maxMembers bound a collection: one whose next page is itself
// would never end.
const (
	maxPages   = 200
	maxMembers = 4000
)

// members lists the links of a collection, page by page, each once, without
// those that hold no link.
func (c *Client) members(ctx context.Context, link, doing string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	pages := map[string]bool{}
	for link != "" && len(pages) < maxPages && len(out) < maxMembers {
		r, err := c.get(ctx, link, doing)
		if err != nil {
			return nil, err
		}
		if pages[r.path] {
			break
		}
		pages[r.path] = true
		page, _, err := decode[common.Collection](r.raw)
		if err != nil {
			return nil, c.nonsense(doing, err)
		}
		for _, l := range page.ItemLinks {
			if l = trimSlash(l); l == "" || seen[l] {
				continue
			}
			seen[l] = true
			out = append(out, l)
		}
		link = page.MembersNextLink
	}
	return out, nil
}

// trimSlash makes the two spellings of a resource's path one.
func trimSlash(path string) string { return strings.TrimRight(path, "/") }

// missing says that a resource is not there, which for an optional part is no
// error.
func missing(err error) bool { return bmc.KindOf(err) == bmc.KindUnsupported }
