package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/storetest"
)

// client calls one process of the API from many goroutines at once.
type client struct{ url, token string }

// create calls allocations/create and returns the allocation or the reason of the
// refusal; anything that is neither is an error.
func (c client) create(ctx context.Context, input obj, key string) (a fleet.Allocation, reason string, err error) {
	body, err := json.Marshal(input)
	if err != nil {
		return a, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/api/compute/allocations/create", bytes.NewReader(body))
	if err != nil {
		return a, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.token)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, "", err
	}
	if resp.StatusCode != http.StatusOK {
		var p problem
		if err := json.Unmarshal(answer, &p); err != nil || p.Code == fleet.CodeInternal {
			return a, "", fmt.Errorf("answered %d %s", resp.StatusCode, answer)
		}
		return a, p.Reason, nil
	}
	var out fleet.AllocationOut
	return out.Allocation, "", json.Unmarshal(answer, &out)
}

// secondProcess is another process of the API, with its own connections.
func (r *rig) secondProcess() string {
	r.t.Helper()
	other := *r
	other.store = store.New(storetest.Again(r.t, r.store.Pool()), r.store.Options)
	r.t.Cleanup(other.store.Close)
	return other.serve(1e6)
}

// atOnce calls fn of n clients at once, half of them of either process.
func (r *rig) atOnce(n int, subject func(i int) string, fn func(i int, c client) error) {
	r.t.Helper()
	urls := []string{r.url, r.secondProcess()}
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		c := client{urls[i%2], r.token(subject(i))}
		wg.Go(func() {
			<-begin
			if err := fn(i, c); err != nil {
				r.t.Errorf("client %d: %v", i, err)
			}
		})
	}
	close(begin)
	wg.Wait()
}

// reasons counts answers.
type reasons struct {
	mu sync.Mutex
	by map[string]int
}

func (r *reasons) add(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]int{}
	}
	r.by[reason]++
}

// Fifty clients of two processes want one device: one gets it, and every other is
// told that there is none.
func TestOneDeviceManyClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 1)
	var got reasons
	r.atOnce(50, func(int) string { return "owner" }, func(_ int, c client) error {
		_, reason, err := c.create(t.Context(), take("acme", pool, 1), "")
		got.add(reason)
		return err
	})
	if got.by[""] != 1 || got.by["no-capacity"] != 49 {
		t.Errorf("answers %v, want one allocation and 49 no-capacity", got.by)
	}
	r.sound()
}

// Fifty clients of two processes and two tenants fill a pool: no device twice, no
// quota passed, and no room left unused.
func TestPoolManyClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	for range 6 {
		r.deployed(pool, 4)
	}
	r.offer(pool, 7)
	var mine, theirs reasons
	r.atOnce(50, func(i int) string { return []string{"owner", "owner2"}[i/25] }, func(i int, c client) error {
		if i/25 == 1 {
			_, reason, err := c.create(t.Context(), take("globex", pool, 1), "")
			theirs.add(reason)
			return err
		}
		_, reason, err := c.create(t.Context(), take("acme", pool, 1), "")
		mine.add(reason)
		return err
	})
	if theirs.by[""] > 7 || theirs.by[""]+mine.by[""] != 24 {
		t.Errorf("globex %v, acme %v: want at most 7 of globex and 24 in all", theirs.by, mine.by)
	}
	if n := theirs.by[""] + theirs.by["quota-exceeded"] + theirs.by["no-capacity"]; n != 25 {
		t.Errorf("globex: %v", theirs.by)
	}
	r.sound()
}

// Fifty clients of two processes retry one call: there is one allocation, which all
// find whom the key was free for.
func TestOneKeyManyClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 8)
	var mu sync.Mutex
	ids := map[string]int{}
	r.atOnce(50, func(int) string { return "owner" }, func(_ int, c client) error {
		for {
			a, reason, err := c.create(t.Context(), take("acme", pool, 1), "the-key")
			if err != nil || reason == "" {
				mu.Lock()
				defer mu.Unlock()
				ids[a.ID]++
				return err
			}
			if reason != "key-in-use" {
				return fmt.Errorf("refused: %s", reason)
			}
			select {
			case <-t.Context().Done():
				return t.Context().Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	if len(ids) != 1 {
		t.Errorf("allocations found: %v", ids)
	}
	if n := r.count(`SELECT count(*) FROM allocations`); n != 1 {
		t.Errorf("%d allocations, want 1", n)
	}
	r.sound()
}

// Allocations without an end and a reservation race for a pool: whoever is first,
// what is reserved is there when its time comes.
func TestReservationRace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	for range 4 {
		r.deployed(pool, 4)
	}
	var got reasons
	reserved := make(chan struct{})
	go func() {
		defer close(reserved)
		var out fleet.ReservationOut
		p := r.call("owner", "reservations/create", reserve("acme", pool, 8, time.Hour, 2*time.Hour), &out)
		if p != nil && p.Reason != "no-capacity" {
			r.t.Errorf("reservations/create: %+v", *p)
		}
	}()
	r.atOnce(30, func(int) string { return "owner" }, func(_ int, c client) error {
		_, reason, err := c.create(t.Context(), take("acme", pool, 1), "")
		got.add(reason)
		return err
	})
	<-reserved
	want := 16
	if r.count(`SELECT count(*) FROM reservations`) == 1 {
		want = 8
	}
	if got.by[""] != want {
		t.Errorf("%d allocations, want %d; answers %v", got.by[""], want, got.by)
	}
	r.sound()
}

// A cordon and placements race: what was placed was placed before the cordon, and
// nothing appears after.
func TestCordonRace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	node := r.deployed(pool, 16)
	cordoned := make(chan int)
	go func() {
		r.ok("owner", "nodes/cordon", on(node), nil)
		cordoned <- r.count(`SELECT count(*) FROM allocations WHERE node_id = $1`, node)
	}()
	r.atOnce(16, func(int) string { return "owner" }, func(_ int, c client) error {
		_, reason, err := c.create(t.Context(), take("acme", pool, 1), "")
		if reason != "" && reason != "no-capacity" {
			return fmt.Errorf("refused: %s", reason)
		}
		return err
	})
	if before, after := <-cordoned, r.count(`SELECT count(*) FROM allocations WHERE node_id = $1`, node); before != after {
		t.Errorf("%d allocations when the cordon was answered, %d at the end", before, after)
	}
	r.sound()
}

// Reservations race for a pool, and as many are made as fit.
func TestReservationsManyClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 8)
	r.offer(pool, 5)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			tenant, subject := "acme", "owner"
			if i%2 == 0 {
				tenant, subject = "globex", "owner2"
			}
			p := r.call(subject, "reservations/create", reserve(tenant, pool, 2, time.Hour, 2*time.Hour), nil)
			if p != nil && p.Reason != "no-capacity" && p.Reason != "quota-exceeded" {
				t.Errorf("refused: %+v", *p)
			}
		})
	}
	wg.Wait()
	if n := r.count(`SELECT sum(gpus) FROM reservations`); n != 8 {
		t.Errorf("%d GPUs of 8 are reserved", n)
	}
	if n := r.count(`SELECT coalesce(sum(gpus), 0) FROM reservations WHERE tenant_id = 'globex'`); n > 5 {
		t.Errorf("globex reserved %d with a quota of 5", n)
	}
}

// Several processes go through a queue while room comes up: its order is kept at
// every moment, and all of the room is used.
func TestQueueManyProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 4)
	r.deployed(pool, 4)
	var held, queue []string
	for range 4 {
		held = append(held, r.mustTake("owner", take("acme", pool, 2)).ID)
	}
	for range 8 {
		queue = append(queue, r.waits("owner", take("acme", pool, 1)).ID)
	}
	stores := []*store.Store{r.store, store.New(storetest.Again(t, r.store.Pool()), r.store.Options)}
	t.Cleanup(stores[1].Close)
	for i, id := range held {
		var wg sync.WaitGroup
		for _, s := range append(stores, stores...) {
			wg.Go(func() {
				if _, err := s.PlaceQueued(t.Context(), pool); err != nil {
					t.Error(err)
				}
			})
		}
		r.release("owner", "acme", id)
		wg.Wait()
		for _, s := range stores {
			if _, err := s.PlaceQueued(t.Context(), pool); err != nil { // as the next round does
				t.Fatal(err)
			}
		}
		for j, id := range queue {
			want := fleet.AllocationQueued
			if j < 2*(i+1) {
				want = fleet.AllocationActive
			}
			if got := r.stateOf(id); got != want {
				t.Errorf("with room for %d, number %d of the queue is %s, want %s", 2*(i+1), j+1, got, want)
			}
		}
	}
	r.sound()
}

// A node that is lost while it is waited for is not booked: it was cordoned, or
// left the pool. A node whose GPUs somebody is about to take is passed by.
func TestPlacementLooksAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	for name, lose := range map[string]func(ctx context.Context, tx pgx.Tx, node string) error{
		"cordoned": func(ctx context.Context, tx pgx.Tx, node string) error {
			_, err := store.CordonNode(ctx, tx, node, nil)
			return err
		},
		"out of the pool": func(ctx context.Context, tx pgx.Tx, node string) error { return store.SetNodePool(ctx, tx, node, nil) },
		"with another label": func(ctx context.Context, tx pgx.Tx, node string) error {
			_, err := store.LabelNode(ctx, tx, node, map[string]string{})
			return err
		},
	} {
		node := r.deployed(pool, 2)
		r.exec(`UPDATE nodes SET labels = '{"a": "1"}' WHERE id = $1`, node)
		done := make(chan *problem, 1)
		err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if err := store.LockNode(ctx, tx, node); err != nil {
				return err
			}
			if err := lose(ctx, tx, node); err != nil {
				return err
			}
			go func() {
				done <- r.call("owner", "allocations/create", take("acme", pool, 1, "nodeSelector", obj{"a": "1"}), nil)
			}()
			r.lockWaits(1)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if p := <-done; p == nil || p.Reason != "no-capacity" {
			t.Errorf("the only node is %s: %+v, want no-capacity", name, p)
		}
		r.exec(`UPDATE nodes SET cordoned = true WHERE id = $1`, node)
	}

	large, small := r.deployed(pool, 4), r.deployed(pool, 2)
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM devices WHERE node_id = $1 ORDER BY id LIMIT 3 FOR UPDATE`, large); err != nil {
			return err
		}
		if a := r.mustTake("owner", take("acme", pool, 2)); a.NodeID != small || len(a.Devices) != 2 {
			t.Errorf("placed on %s, want %s", a.NodeID, small)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.sound()
}

// A reservation that is made while an allocation waits for the pool is seen by it.
func TestPlacementSeesTheReservation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool := r.pool(r.site, "p")
	r.deployed(pool, 2)
	done := make(chan *problem, 1)
	err := r.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := store.LockPool(ctx, tx, pool, true); err != nil {
			return err
		}
		go func() { done <- r.call("owner", "allocations/create", take("acme", pool, 1), nil) }()
		r.lockWaits(1)
		return store.InsertReservation(ctx, tx, store.NewReservation{ID: store.NewID(fleet.KindReservation), TenantID: "acme", PoolID: pool, Owner: "acme",
			CreatedBy: "dev:owner", GPUs: 2, From: time.Now().Add(time.Hour), To: time.Now().Add(2 * time.Hour)})
	})
	if err != nil {
		t.Fatal(err)
	}
	if p := <-done; p == nil || p.Reason != "no-capacity" {
		t.Errorf("%+v, want no-capacity: all is reserved for the time after the next hour", p)
	}
}
