package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/bettercompute/compute/store"
)

// metrics are what /metrics serves.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
}

func newMetrics(s *store.Store) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "compute_api_request_seconds", Help: "Requests by path and status.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}}, []string{"path", "status"})}
	m.registry.MustRegister(m.calls, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "compute_dispatch_oldest_seconds", Help: "Age of the oldest dispatch row not delivered."},
			gauge(func(ctx context.Context) (float64, error) {
				age, _, err := store.DispatchLag(ctx, s.Pool())
				return age.Seconds(), err
			})),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "compute_events_horizon_seconds", Help: "Age of the oldest transaction still running, which holds events back."},
			gauge(func(ctx context.Context) (float64, error) {
				age, err := store.HorizonAge(ctx, s.Pool())
				return age.Seconds(), err
			})))
	return m
}

// gauge reads a value at each scrape; one that cannot be read is -1.
func gauge(read func(context.Context) (float64, error)) func() float64 {
	return func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		v, err := read(ctx)
		if err != nil {
			return -1
		}
		return v
	}
}

func (m *metrics) observe(path string, status int, took time.Duration) {
	m.calls.WithLabelValues(path, strconv.Itoa(status)).Observe(took.Seconds())
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
