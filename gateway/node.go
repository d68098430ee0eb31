package gateway

import (
	"net/http"
	"strings"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

// The limits of bodies. A result can hold an inventory.
const (
	smallBody  = 64 << 10
	resultBody = 4 << 20
)

// detailMax bounds the words of a progress.
const detailMax = 1024

// NodeHandler is the TLS listener's: call-in and commands.
func (g *Gateway) NodeHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /node/v1/call-in", traced(g.guard(g.callIn)))
	mux.HandleFunc("POST /node/v1/commands/next", g.session(g.nextCommand))
	mux.HandleFunc("POST /node/v1/commands/{id}/progress", g.session(g.commandProgress))
	mux.HandleFunc("POST /node/v1/commands/{id}/result", g.session(g.commandResult))
	mux.HandleFunc("POST /node/v1/ping", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("POST /node/v1/join", traced(g.guard(g.join)))
	mux.HandleFunc("POST /node/v1/challenge", traced(g.guard(g.challenge)))
	mux.HandleFunc("POST /node/v1/renew", traced(g.guard(g.renew)))
	mux.HandleFunc("POST /node/v1/session", traced(g.guard(g.openSession)))
	mux.HandleFunc("POST /node/v1/session/next", g.member(g.memberNext))
	mux.HandleFunc("POST /node/v1/session/spec", g.member(g.memberSpec))
	mux.HandleFunc("POST /node/v1/session/leave", traced(g.member(g.memberLeave)))
	mux.HandleFunc("POST /node/v1/session/commands/{id}/progress", g.member(g.memberProgress))
	mux.HandleFunc("POST /node/v1/session/commands/{id}/result", g.member(g.memberResult))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answerProblem(w, http.StatusNotFound, string(fleet.CodeNotFound), "", "no such route")
	})
	return g.logged(mux)
}

// callIn lets a machine in that shows its power-on's one-time token.
func (g *Gateway) callIn(w http.ResponseWriter, r *http.Request) {
	var in store.CallIn
	if err := readJSON(w, r, smallBody, &in); err != nil {
		g.answerError(w, r, err)
		return
	}
	out, err := g.store.UseBootToken(r.Context(), in)
	if err != nil {
		g.log.InfoContext(r.Context(), "call-in refused", "from", clientOf(r), "code", fleet.CodeOf(err), "reason", fleet.ReasonOf(err))
		g.answerError(w, r, err)
		return
	}
	concerning(r.Context(), out.NodeID, out.OperationID)
	g.log.InfoContext(r.Context(), "machine called in", "node", out.NodeID, "operation", out.OperationID, "from", clientOf(r))
	answerJSON(w, out)
}

// session finds the machine of the request's bearer. A bearer that was good
// before is let through a flood of bad ones from the same address.
func (g *Gateway) session(next func(http.ResponseWriter, *http.Request, store.BootSession)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		client := clientOf(r)
		if g.floods.spent(client) && !g.known.has(bearerOf(r)) {
			refuseFlood(w)
			return
		}
		m, err := g.machine(r)
		if err != nil {
			if fleet.CodeOf(err) == fleet.CodeUnauthenticated {
				g.floods.failed(client)
			}
			g.answerError(w, r, err)
			return
		}
		next(w, r, m)
	}
}

func bearerOf(r *http.Request) string {
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return bearer
}

func (g *Gateway) machine(r *http.Request) (store.BootSession, error) {
	bearer := bearerOf(r)
	if bearer == "" {
		return store.BootSession{}, fleet.Errorf(fleet.CodeUnauthenticated, "", "a session from call-in is needed")
	}
	m, err := g.store.MachineSession(r.Context(), bearer)
	if err == nil {
		g.known.add(bearer)
	}
	return m, err
}

// nextCommand hands out the machine's next command, or waits for one. While it
// waits it holds no connection to Postgres.
func (g *Gateway) nextCommand(w http.ResponseWriter, r *http.Request, m store.BootSession) {
	var in struct {
		WaitSeconds int `json:"waitSeconds"`
	}
	if err := readJSON(w, r, smallBody, &in); err != nil {
		g.answerError(w, r, err)
		return
	}
	wait := min(time.Duration(max(in.WaitSeconds, 0))*time.Second, g.store.SeenEvery())
	timer := time.NewTimer(wait)
	defer timer.Stop()
	woken, remove := g.waiting.add(m.BootID)
	defer remove()
	for {
		d, err := g.store.NextCommand(r.Context(), store.OfBoot(m.BootID))
		if err != nil {
			g.answerError(w, r, err)
			return
		}
		if d != nil {
			g.delivered(r.Context(), d, m.NodeID)
			answerJSON(w, map[string]any{"command": d})
			return
		}
		select {
		case <-woken:
		case <-timer.C:
			w.WriteHeader(http.StatusNoContent)
			return
		case <-r.Context().Done():
			return
		case <-g.closing:
			w.WriteHeader(http.StatusNoContent)
			return
		}
		// What woke us can be the end of the boot.
		if _, err := g.machine(r); err != nil {
			g.answerError(w, r, err)
			return
		}
	}
}

func (g *Gateway) commandProgress(w http.ResponseWriter, r *http.Request, m store.BootSession) {
	g.takeProgress(w, r, store.OfBoot(m.BootID))
}

func (g *Gateway) commandResult(w http.ResponseWriter, r *http.Request, m store.BootSession) {
	g.takeResult(w, r, store.OfBoot(m.BootID), m.NodeID)
}

func (g *Gateway) takeProgress(w http.ResponseWriter, r *http.Request, o store.Owner) {
	var in struct {
		Percent *int   `json:"percent"`
		Detail  string `json:"detail"`
	}
	if err := readJSON(w, r, smallBody, &in); err != nil {
		g.answerError(w, r, err)
		return
	}
	if in.Percent != nil {
		*in.Percent = min(max(*in.Percent, 0), 100)
	}
	if err := g.store.CommandProgress(r.Context(), o, r.PathValue("id"), in.Percent, fleet.Text(in.Detail, detailMax)); err != nil {
		g.answerError(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (g *Gateway) takeResult(w http.ResponseWriter, r *http.Request, o store.Owner, nodeID string) {
	var in store.CommandOutcome
	if err := readJSON(w, r, resultBody, &in); err != nil {
		g.answerError(w, r, err)
		return
	}
	in.Error, in.Data = fleet.Text(in.Error, 16<<10), storableJSON(in.Data)
	if err := g.store.CommandResult(r.Context(), o, r.PathValue("id"), in); err != nil {
		g.answerError(w, r, err)
		return
	}
	g.log.Info("command ended", "command", r.PathValue("id"), "ok", in.OK, "node", nodeID)
	w.WriteHeader(http.StatusNoContent)
}
