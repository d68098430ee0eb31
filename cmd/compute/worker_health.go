package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/bettercompute/compute/worker"
)

// serveWorkerHealth answers /healthz and /readyz until the context ends.
func serveWorkerHealth(ctx context.Context, listen string, state *worker.State) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		answer := map[string]any{"ready": true}
		status := http.StatusOK
		if why := state.Ready(ctx); why != "" {
			answer, status = map[string]any{"ready": false, "why": why}, http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer) // who asked may be gone
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	context.AfterFunc(ctx, func() { srv.Close() })
	go func() { _ = srv.Serve(l) }() // it ends with the context
	return nil
}
