package gateway

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// epochHeader names the session of a request.
const epochHeader = "Compute-Session-Epoch"

// ReasonNoSession is the reason of a request whose session is not here: the
// agent opens a new one.
const ReasonNoSession = "no-session"

// openSession begins a node's session.
func (g *Gateway) openSession(w http.ResponseWriter, r *http.Request) {
	shown, err := g.shown(r)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	epoch, err := g.store.OpenSession(r.Context(), g.id, shown)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	g.members.open(store.HeldSession{NodeID: shown.NodeID, Serial: shown.Serial, Epoch: epoch})
	concerning(r.Context(), shown.NodeID, "")
	g.log.InfoContext(r.Context(), "session opened", "node", shown.NodeID, "epoch", epoch)
	answerJSON(w, map[string]any{"nodeId": shown.NodeID, "epoch": epoch})
}

// member finds the session of a request. It asks no database: what ends sessions
// is looked for every two seconds for all of them together.
func (g *Gateway) member(next func(http.ResponseWriter, *http.Request, *member)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		shown, err := g.shown(r)
		if err != nil {
			g.answerError(w, r, err)
			return
		}
		epoch, err := strconv.ParseInt(r.Header.Get(epochHeader), 10, 64)
		if err != nil {
			g.answerError(w, r, fleet.Invalid(epochHeader, "the session's epoch"))
			return
		}
		m := g.members.heard(shown.NodeID, shown.Serial, epoch)
		if m == nil {
			g.answerError(w, r, noSession())
			return
		}
		next(w, r, m)
	}
}

func noSession() error {
	return fleet.Errorf(fleet.CodeConflict, ReasonNoSession, "the session is not here, or another one took its place; open a new one")
}

// memberNext hands a node its next command or a newer NodeSpec, or waits for
// either.
func (g *Gateway) memberNext(w http.ResponseWriter, r *http.Request, m *member) {
	var in struct {
		WaitSeconds int `json:"waitSeconds"`
		// Spec and SpecTag are the NodeSpec that the agent tried last.
		Spec    int64  `json:"spec"`
		SpecTag string `json:"specTag"`
	}
	if err := readJSON(w, r, smallBody, &in); err != nil {
		g.answerError(w, r, err)
		return
	}
	timer := time.NewTimer(min(time.Duration(max(in.WaitSeconds, 0))*time.Second, g.store.SeenEvery()))
	defer timer.Stop()
	for {
		select {
		case <-m.due:
			if g.takeDue(w, r, m, in.Spec, in.SpecTag) {
				return
			}
		case <-timer.C:
			w.WriteHeader(http.StatusNoContent)
			return
		case <-m.over:
			g.answerError(w, r, noSession())
			return
		case <-r.Context().Done():
			return
		case <-g.closing:
			g.answerError(w, r, closingNow())
			return
		}
	}
}

// closingNow sends the agents of a gateway that stops to come back, or to go to
// another one, not all at the same moment.
func closingNow() error {
	return &fleet.Error{Code: fleet.CodeUnavailable, Reason: "closing", Detail: "this gateway stops; come back", RetryAfter: time.Second + rand.N(closingSpread)}
}

// closingSpread is over how long the agents of a gateway that stops come back.
const closingSpread = 10 * time.Second

// takeDue answers with what there is for a node and says whether it answered. A
// heartbeat of a node for which there is nothing asks no database.
func (g *Gateway) takeDue(w http.ResponseWriter, r *http.Request, m *member, version int64, tag string) (answered bool) {
	out, err := g.forMember(r.Context(), m.NodeID, version, tag)
	if err == nil && out == nil {
		return false
	}
	// There may be more, or this answer gets lost.
	m.wake()
	if err != nil {
		g.answerError(w, r, err)
		return true
	}
	answerJSON(w, out)
	return true
}

// forMember is what there is for a node, nil when there is nothing. Another spec
// than the one it knows comes first: a command may lean on it.
func (g *Gateway) forMember(ctx context.Context, nodeID string, version int64, tag string) (map[string]any, error) {
	spec, err := g.store.NodeSpecBeside(ctx, nodeID, version, tag)
	if err != nil {
		return nil, err
	}
	if spec != nil {
		return map[string]any{"spec": spec}, nil
	}
	d, err := g.store.NextCommand(ctx, store.OfNode(nodeID))
	if err != nil || d == nil {
		return nil, err
	}
	g.delivered(ctx, d, nodeID)
	return map[string]any{"command": d}, nil
}

func (g *Gateway) memberProgress(w http.ResponseWriter, r *http.Request, m *member) {
	g.takeProgress(w, r, store.OfNode(m.NodeID))
}

func (g *Gateway) memberResult(w http.ResponseWriter, r *http.Request, m *member) {
	g.takeResult(w, r, store.OfNode(m.NodeID), m.NodeID)
}

func (g *Gateway) memberSpec(w http.ResponseWriter, r *http.Request, m *member) {
	var in store.SpecReport
	if err := readJSON(w, r, smallBody, &in); err != nil {
		g.answerError(w, r, err)
		return
	}
	in.Error, in.SSHConflict, in.Address = fleet.Text(in.Error, 4<<10), fleet.Text(in.SSHConflict, 4<<10), reachable(in.Address)
	if err := g.store.ReportSpec(r.Context(), m.NodeID, in); err != nil {
		g.answerError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// reachable is an address that other machines may reach, "" for any other text.
func reachable(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Zone() != "" || !ip.IsGlobalUnicast() {
		return ""
	}
	return ip.Unmap().String()
}

func (g *Gateway) memberLeave(w http.ResponseWriter, r *http.Request, m *member) {
	if err := g.store.CloseSession(r.Context(), m.NodeID, m.Epoch); err != nil {
		g.answerError(w, r, err)
		return
	}
	g.members.end(m.NodeID, m.Epoch)
	concerning(r.Context(), m.NodeID, "")
	g.log.InfoContext(r.Context(), "node left", "node", m.NodeID)
	w.WriteHeader(http.StatusNoContent)
}
