package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerReservations(r *Registry) {
	Handle(r, "reservations", "create", reservationsCreate, reservationInput)
	Handle(r, "reservations", "get", reservationsGet)
	Handle(r, "reservations", "list", reservationsList, paged(reservationsPage))
	Handle(r, "reservations", "cancel", reservationsCancel)
}

// reservationInput checks what needs no row of reservations/create.
func reservationInput(in fleet.ReservationsCreateIn) error {
	switch {
	case !in.From.Before(in.To.Time):
		return fleet.Invalid("to", "after from")
	case !in.To.After(time.Now()):
		return fleet.Invalid("to", "in the future")
	}
	return nil
}

func reservationsCreate(ctx context.Context, c *Call, in fleet.ReservationsCreateIn) (fleet.ReservationOut, error) {
	var pool store.PoolRef
	id := store.NewID(fleet.KindReservation)
	return Mutate(ctx, c, Mutation[fleet.ReservationOut]{
		Find: c.inPool(in.PoolID, &pool),
		Lock: func(ctx context.Context, tx pgx.Tx) error { return store.LockPool(ctx, tx, in.PoolID, true) },
		Input: func(context.Context, pgx.Tx) error {
			hours := pool.Policy.MaxReservationHours
			if hours != nil && in.To.Sub(in.From.Time) > time.Duration(*hours)*time.Hour {
				return fleet.Invalid("to", fmt.Sprintf("at most %d hours after from, by the pool's policy maxReservationHours", *hours))
			}
			return nil
		},
		Judge: func(context.Context, pgx.Tx) error { return archivedPool(pool) },
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.ReservationOut, error) {
			err := store.InsertReservation(ctx, tx, store.NewReservation{ID: id, TenantID: c.TenantID, PoolID: in.PoolID, Owner: pool.Owner, CreatedBy: c.Identity,
				GPUs: in.GPUs, From: in.From.Time, To: in.To.Time, Quota: pool.Quota})
			if err != nil {
				return fleet.ReservationOut{}, err
			}
			r, err := store.LoadReservation(ctx, tx, id)
			return fleet.ReservationOut{Reservation: r}, err
		},
		Made: func(o fleet.ReservationOut) string { return o.Reservation.ID },
	})
}

// findReservation finds a reservation of the calling tenant, or in a pool that it
// owns.
func (c *Call) findReservation(r *fleet.Reservation, id string) func(ctx context.Context, q store.Reader) (Target, error) {
	return func(ctx context.Context, q store.Reader) (Target, error) {
		if _, err := store.ReservationOwner(ctx, q, c.TenantID, id); err != nil {
			return Target{}, err
		}
		var err error
		*r, err = store.LoadReservation(ctx, q, id)
		return c.reservationTarget(*r), err
	}
}

func (c *Call) reservationTarget(r fleet.Reservation) Target {
	return Target{Kind: fleet.OnReservation, ID: r.ID, OwnerTenant: c.TenantID, PoolID: r.PoolID}
}

func reservationsGet(ctx context.Context, c *Call, in fleet.ReservationIn) (fleet.ReservationOut, error) {
	var r fleet.Reservation
	return Read(ctx, c, "", c.findReservation(&r, in.ReservationID), func(context.Context, store.Reader, Target) (fleet.ReservationOut, error) {
		return fleet.ReservationOut{Reservation: r}, nil
	})
}

func reservationsPage(in fleet.ReservationsListIn) (pager, error) {
	filters := in
	filters.PageIn = fleet.PageIn{}
	return newPager("reservations/list", in.PageIn, filters, idCursor("reservationId"))
}

func reservationsList(ctx context.Context, c *Call, in fleet.ReservationsListIn) (fleet.ReservationsPage, error) {
	pg, err := reservationsPage(in)
	if err != nil {
		return fleet.ReservationsPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.ReservationsPage, error) {
		list, err := store.ListReservations(ctx, q, store.ReservationFilter{TenantID: c.TenantID, State: in.State, PoolID: in.PoolID, After: pg.after, Limit: pg.limit})
		if err != nil {
			return fleet.ReservationsPage{}, err
		}
		items, next := cut(pg, list, func(r fleet.Reservation) string { return r.ID })
		out := fleet.ReservationsPage{Items: []fleet.Reservation{}, NextCursor: next}
		for _, r := range items {
			if c.May(fleet.PermReservationsRead, c.reservationTarget(r)) {
				out.Items = append(out.Items, r)
			}
		}
		return out, nil
	})
}

func reservationsCancel(ctx context.Context, c *Call, in fleet.ReservationsCancelIn) (fleet.ReservationOut, error) {
	var r fleet.Reservation
	find := c.findReservation(&r, in.ReservationID)
	return Mutate(ctx, c, Mutation[fleet.ReservationOut]{
		Find: func(ctx context.Context, tx pgx.Tx) (Target, error) { return find(ctx, tx) },
		Lock: func(ctx context.Context, tx pgx.Tx) error {
			if err := store.LockPool(ctx, tx, r.PoolID, true); err != nil {
				return err
			}
			return store.LockReservation(ctx, tx, in.ReservationID)
		},
		Judge: func(ctx context.Context, tx pgx.Tx) error {
			live, err := store.ReservationAllocations(ctx, tx, in.ReservationID)
			if err != nil || len(live) == 0 {
				return err
			}
			return fleet.Errorf(fleet.CodeInvalidState, "allocations-live", "allocations under this reservation are live; release them first: %s", strings.Join(live, ", ")).
				With("allocations", live)
		},
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.ReservationOut, error) {
			if r.State != fleet.ReservationOpen {
				return fleet.ReservationOut{Reservation: r}, nil
			}
			err := store.EndReservation(ctx, tx, r, fleet.ReservationCancelled, store.Ending{Actor: c.Identity, By: c.TenantID, Reason: text(in.Reason)})
			if err != nil {
				return fleet.ReservationOut{}, err
			}
			r, err := store.LoadReservation(ctx, tx, in.ReservationID)
			return fleet.ReservationOut{Reservation: r}, err
		},
	})
}
