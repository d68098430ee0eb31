package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/store/storetest"
)

// release calls allocations/release.
func (c client) release(ctx context.Context, tenant, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/api/compute/allocations/release", jsonBody(in(tenant, "allocationId", id)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("release answered %d %s", resp.StatusCode, answer)
	}
	return err
}

func jsonBody(v any) io.Reader {
	r, w := io.Pipe()
	go func() { w.CloseWithError(json.NewEncoder(w).Encode(v)) }()
	return r
}

// thousandGPUs is a rig with a pool of 125 nodes of 8 GPUs, half of it offered to
// globex, and more connections than a test has.
func thousandGPUs(t testing.TB) (r *rig, pool string) {
	t.Helper()
	conns, err := pgxpool.New(context.Background(), storetest.URL(t)+"?pool_max_conns=16")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns.Close)
	r = newRigOn(t, conns)
	r.logger = slog.New(slog.DiscardHandler)
	r.url = r.serve(1e6)
	pool = r.pool(r.site, "big")
	for range 125 {
		storetest.Deployed(t, r.store, storetest.Machine{TenantID: "acme", SiteID: r.site, PoolID: pool, GPUs: 8})
	}
	r.exec(`UPDATE pools SET gpus_per_node = NULL WHERE id = $1`, pool)
	r.offer(pool, 500)
	r.exec(`ANALYZE`)
	return r, pool
}

// Thirty-two clients of two tenants take and give back GPUs of a pool of a
// thousand: at the end no GPU is booked twice, no quota passed, and the counts
// agree.
func TestAllocationLoad(t *testing.T) {
	t.Parallel()
	r, pool := thousandGPUs(t)
	var taken, refused atomic.Int64
	r.atOnce(32, func(i int) string { return []string{"owner", "owner2"}[i/16] }, func(i int, c client) error {
		tenant := []string{"acme", "globex"}[i/16]
		random := rand.New(rand.NewPCG(uint64(i), 1))
		var held []string
		for range 40 {
			if len(held) > 0 && random.IntN(4) == 0 {
				if err := c.release(t.Context(), tenant, held[0]); err != nil {
					return err
				}
				held = held[1:]
				continue
			}
			a, reason, err := c.create(t.Context(), take(tenant, pool, 1+random.IntN(4)), "")
			switch {
			case err != nil:
				return err
			case reason == "":
				held = append(held, a.ID)
				taken.Add(1)
			case reason == "quota-exceeded" && tenant == "globex", reason == "no-capacity":
				refused.Add(1)
			default:
				return fmt.Errorf("refused: %s", reason)
			}
		}
		return nil
	})
	if got := r.poolOf("owner2", "globex", pool); *got.Used > 500 {
		t.Errorf("globex uses %d of 500", *got.Used)
	}
	t.Logf("%d allocations, %d refusals", taken.Load(), refused.Load())
	r.sound()
}

// BenchmarkAllocations is one allocation made and released, by as many clients as
// its name says, of a pool of a thousand GPUs.
func BenchmarkAllocations(b *testing.B) {
	for _, clients := range []int{1, 4, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			r, pool := thousandGPUs(b)
			token := r.token("owner2")
			work := make(chan struct{})
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					c := client{r.url, token}
					for range work {
						a, reason, err := c.create(context.Background(), take("globex", pool, 1), "")
						if err == nil && reason != "" {
							err = fmt.Errorf("refused: %s", reason)
						}
						if err == nil {
							err = c.release(context.Background(), "globex", a.ID)
						}
						if err != nil {
							b.Error(err)
						}
					}
				})
			}
			b.ResetTimer()
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "allocations/s")
		})
	}
}
