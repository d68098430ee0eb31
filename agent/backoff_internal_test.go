package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A gateway that asks to be left alone for a while is.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	var at []time.Time
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if at = append(at, time.Now()); len(at) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(s.Close)
	c := &client{http: s.Client(), base: s.URL, pause: time.Millisecond, warn: func(string, ...any) {}, header: http.Header{}}
	if _, err := c.persist(t.Context(), "/x", struct{}{}, nil); err != nil {
		t.Fatal(err)
	}
	if len(at) != 2 || at[1].Sub(at[0]) < time.Second {
		t.Errorf("asked at %v, want again no sooner than a second after", at)
	}
}
