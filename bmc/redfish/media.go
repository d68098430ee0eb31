package redfish

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/bettercompute/compute/bmc"
)

// slot is a virtual CD slot, with absent told from false.
type slot struct {
	resource
	ID           string `json:"Id"`
	Name         string
	MediaTypes   []string
	Image        *string
	Inserted     *bool
	ConnectedVia string
	Actions      struct {
		Insert *mediaAction `json:"#VirtualMedia.InsertMedia"`
		Eject  *mediaAction `json:"#VirtualMedia.EjectMedia"`
	}
}

type mediaAction struct {
	Target     string
	Protocols  []string `json:"TransferProtocolType@Redfish.AllowableValues"`
	ActionInfo string   `json:"@Redfish.ActionInfo"`
}

// forCD says whether the slot takes a CD: by its types, and where the service
// shows none, as AMI's do not, by what it is called.
func (s slot) forCD() bool {
	if len(s.MediaTypes) > 0 {
		return slices.Contains(s.MediaTypes, string(redfish.CDMediaType)) || slices.Contains(s.MediaTypes, string(redfish.DVDMediaType))
	}
	called := strings.ToLower(s.ID + " " + s.Name)
	return strings.Contains(called, "cd") || strings.Contains(called, "dvd")
}

// image is the URL in the slot, "" when it shows none.
func (s slot) image() string {
	if s.Image == nil || !strings.Contains(*s.Image, "/") {
		return "" // some show a word such as "None" or "Disconnected" in an empty slot
	}
	return *s.Image
}

// holds says that something is in the slot.
func (s slot) holds() bool {
	if s.Inserted != nil {
		return *s.Inserted
	}
	return s.image() != ""
}

// shows says that the slot holds this image. A service that does not say
// whether an image is inserted is believed by the image it names.
func (s slot) shows(image string) bool {
	return s.holds() && sameImage(s.image(), image)
}

// sameImage compares URLs; services drop or escape parts of a query.
func sameImage(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	if errX != nil || errY != nil {
		return false
	}
	return strings.EqualFold(x.Scheme, y.Scheme) && strings.EqualFold(x.Host, y.Host) && x.Path == y.Path &&
		(x.RawQuery == y.RawQuery || x.RawQuery == "")
}

// slots are the virtual CD slots of a machine, under the system or under its
// managers, by path.
func (c *Client) slots(ctx context.Context, s system) ([]slot, error) {
	doing := "read the virtual media of " + c.name()
	var collections []common.Link
	if l := s.more.VirtualMedia; l != "" {
		collections = append(collections, l)
	}
	managers, err := c.managers(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, m := range managers {
		if l := m.more.VirtualMedia; l != "" {
			collections = append(collections, l)
		}
	}
	var out []slot
	for _, col := range collections {
		links, err := c.members(ctx, string(col), doing)
		if err != nil && !missing(err) {
			return nil, err
		}
		for _, l := range links {
			sl, ok, err := c.readSlot(ctx, l, doing)
			if err != nil {
				return nil, err
			}
			if ok && !slices.ContainsFunc(out, func(o slot) bool { return o.path == sl.path }) {
				out = append(out, sl)
			}
		}
	}
	// Beside slots with the action, empty ones without are for other ways, such as
	// a viewer's.
	if slices.ContainsFunc(out, func(s slot) bool { return s.Actions.Insert != nil }) {
		out = slices.DeleteFunc(out, func(s slot) bool { return s.Actions.Insert == nil && !s.holds() })
	}
	slices.SortFunc(out, func(a, b slot) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// readSlot reads a slot; false for what is no CD slot that can be filled.
func (c *Client) readSlot(ctx context.Context, link, doing string) (slot, bool, error) {
	r, err := c.get(ctx, link, doing)
	if missing(err) {
		return slot{}, false, nil
	}
	if err != nil {
		return slot{}, false, err
	}
	s, _, err := decode[slot](r.raw)
	if err != nil {
		return slot{}, false, c.nonsense(doing, err)
	}
	s.resource = r
	// A slot of before version 1.1 has no actions and is filled by writing Image,
	// which an empty one shows as null.
	var members map[string]json.RawMessage
	_ = json.Unmarshal(r.raw, &members) // decoded above
	_, writable := members["Image"]
	return *s, s.forCD() && (s.Actions.Insert != nil || writable), nil
}

// mediaRun is one change of a slot under way.
type mediaRun struct {
	c     *Client
	doing string
	until time.Time
	last  error
}

func (c *Client) newMediaRun(doing string) *mediaRun {
	return &mediaRun{c: c, doing: doing, until: time.Now().Add(c.waits.Change)}
}

// InsertMedia puts an image into a virtual CD slot and waits until it shows it.
func (c *Client) InsertMedia(ctx context.Context, imageURL string) error {
	c.hideQuery(imageURL)
	r := c.newMediaRun("insert the image into " + c.name())
	s, err := c.mine(ctx)
	if err != nil {
		return err
	}
	slots, err := c.slots(ctx, s)
	if err != nil {
		return err
	}
	if len(slots) == 0 {
		return &bmc.Error{Kind: bmc.KindUnsupported, Doing: r.doing, Cause: "the BMC has no virtual CD slot", Remedy: "boot by HTTP boot or PXE"}
	}
	chosen := chooseSlot(slots, imageURL)
	if chosen.shows(imageURL) {
		return nil
	}
	if chosen.holds() {
		if err := r.eject(ctx, chosen); err != nil {
			return err
		}
	}
	return r.insert(ctx, chosen, imageURL)
}

// hideQuery keeps the query of an image's URL, which may be a signature, out of
// errors.
func (c *Client) hideQuery(image string) {
	if u, err := url.Parse(image); err == nil && u.RawQuery != "" {
		c.secrets = append(c.secrets, u.RawQuery)
	}
}

// chooseSlot is the slot that holds the image already, else an empty one, else
// the first.
func chooseSlot(slots []slot, image string) slot {
	for _, fits := range []func(slot) bool{
		func(s slot) bool { return s.shows(image) },
		func(s slot) bool { return !s.holds() && s.Actions.Insert != nil },
		func(s slot) bool { return !s.holds() },
		func(s slot) bool { return s.Actions.Insert != nil },
	} {
		if i := slices.IndexFunc(slots, fits); i >= 0 {
			return slots[i]
		}
	}
	return slots[0]
}

// EjectMedia empties every virtual CD slot whose image keep does not claim.
func (c *Client) EjectMedia(ctx context.Context, keep func(url string) bool) error {
	s, err := c.mine(ctx)
	if err != nil {
		return err
	}
	slots, err := c.slots(ctx, s)
	if err != nil {
		return err
	}
	if len(slots) == 0 {
		return &bmc.Error{Kind: bmc.KindUnsupported, Doing: "empty the virtual media of " + c.name(), Cause: "the BMC has no virtual CD slot", Remedy: "none needed"}
	}
	for _, sl := range slots {
		if !sl.holds() || keep != nil && keep(sl.image()) {
			continue
		}
		if err := c.newMediaRun("empty the virtual media of "+c.name()).eject(ctx, sl); err != nil {
			return err
		}
	}
	return nil
}

// eject empties a slot, by its action or, where it has none, by writing it.
func (r *mediaRun) eject(ctx context.Context, s slot) error {
	for sent := 0; ; sent++ {
		rq := request{method: http.MethodPatch, path: s.path, ifMatch: s.tag, doing: r.doing, body: map[string]any{"Image": nil, "Inserted": false}}
		if e := s.Actions.Eject; e != nil && e.Target != "" {
			path, err := r.c.local(e.Target)
			if err != nil {
				return err
			}
			rq = request{method: http.MethodPost, path: path, doing: r.doing, body: map[string]any{}}
		}
		look, err := r.change(ctx, rq)
		if err != nil {
			return err
		}
		s2, reached, err := r.await(ctx, s, func(s slot) bool { return !s.holds() }, look)
		if err != nil || reached {
			return err
		}
		if s = s2; sent+1 >= maxSends {
			return r.last
		}
	}
}

// patience says for how long a slot is read after a request.
type patience int

const (
	lookOnce   patience = iota // it was refused: the slot may be as wanted all the same
	lookAWhile                 // perhaps acted upon, perhaps not: what runs is given its time
	lookToEnd                  // accepted: it is at work
)

// change sends a request of which the slot will tell whether it was acted
// upon, and says how long to look. An error that will not go away is returned.
func (r *mediaRun) change(ctx context.Context, rq request) (patience, error) {
	a, v, failed := r.send(ctx, rq)
	switch {
	case failed == nil:
		return lookToEnd, nil
	case perhapsDone(a, v, failed):
		return lookAWhile, nil
	case v.class == classLost && bmc.KindOf(failed) == bmc.KindUnreachable:
		return lookOnce, r.c.sleep(ctx, r.c.waits.Busy, r.doing)
	case v.class == classLater, v.class == classConflict, v.class == classPrecondition:
		return lookOnce, r.c.pause(ctx, v, r.doing)
	default:
		return lookOnce, failed
	}
}

// perhapsDone says of a request that failed that it may have been acted upon:
// its answer was lost, or is an error that leaves it open.
func perhapsDone(a *answer, v verdict, failed error) bool {
	if a == nil {
		return bmc.KindOf(failed) == bmc.KindUnreachable && !notSent(failed)
	}
	return v.class != classDone && outcomeUnknown(a, v)
}

// send sends a request and follows its task.
func (r *mediaRun) send(ctx context.Context, rq request) (*answer, verdict, error) {
	a, v, err := r.c.change(ctx, rq)
	switch {
	case err != nil:
		a, v.class = nil, classLost
	case v.class != classDone:
		err = r.c.failure(r.doing, a, v)
	default:
		if err = r.c.follow(ctx, a, r.until, r.doing); err != nil {
			a, v.class = nil, classLost
		}
	}
	r.last = err
	return a, v, err
}

// awhile is how long something is given that may be at work: transfers have
// been seen to take a minute.
func (r *mediaRun) awhile() time.Duration { return r.c.waits.Change * 2 / 5 }

// await reads a slot until it is as wanted, or for as long as it is given.
func (r *mediaRun) await(ctx context.Context, s slot, wanted func(slot) bool, look patience) (slot, bool, error) {
	for began := time.Now(); ; {
		now, ok, err := r.c.readSlot(ctx, s.path, r.doing)
		if err != nil {
			return s, false, err
		}
		if !ok {
			now = s
		}
		if ok && wanted(now) {
			return now, true, nil
		}
		if look == lookOnce || look == lookAWhile && time.Since(began) >= r.awhile() {
			return now, false, nil
		}
		if time.Now().After(r.until) {
			return now, false, &bmc.Error{Kind: bmc.KindTimeout, Doing: r.doing, Cause: "the slot does not show it in time", Err: r.last,
				Remedy: "see whether the BMC can reach the image's URL, and the BMC's log"}
		}
		if err := r.c.sleep(ctx, r.c.waits.Poll, r.doing); err != nil {
			return now, false, err
		}
	}
}

// protocols are the values that an action allows for TransferProtocolType.
func (c *Client) protocols(ctx context.Context, a *mediaAction) ([]string, error) {
	if a == nil || len(a.Protocols) > 0 || a.ActionInfo == "" {
		if a == nil {
			return nil, nil
		}
		return a.Protocols, nil
	}
	return c.actionInfo(ctx, a.ActionInfo, protocolProperty)
}
