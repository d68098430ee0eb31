package api

import (
	"context"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store"
)

func registerSites(r *Registry) {
	Handle(r, "sites", "create", sitesCreate, func(in fleet.SitesCreateIn) error { return bootInput(in.Boot) })
	Handle(r, "sites", "get", sitesGet)
	Handle(r, "sites", "list", sitesList, paged(sitesPage))
	Handle(r, "sites", "update", sitesUpdate, func(in fleet.SitesUpdateIn) error { return bootInput(in.Boot) })
}

// bootInput refuses a program to be installed that could be any.
func bootInput(in *fleet.BootSpec) error {
	if in != nil && (in.AgentURL == "") != (in.AgentChecksum == "") {
		return fleet.Invalid("boot.agentChecksum", "given with agentUrl, and only with it")
	}
	return nil
}

// event is an event of the calling tenant's own thing.
func (c *Call) event(typ string, version int64, data map[string]any) store.EventIn {
	return store.EventIn{Type: typ, TenantID: c.TenantID, Actor: c.Identity, Version: version, Data: data}
}

func sitesCreate(ctx context.Context, c *Call, in fleet.SitesCreateIn) (fleet.SiteOut, error) {
	return Mutate(ctx, c, Mutation[fleet.SiteOut]{
		Find: c.FindTenant,
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.SiteOut, error) {
			site, err := store.InsertSite(ctx, tx, store.NewID(fleet.KindSite), c.TenantID, in.SiteSpec)
			if err != nil {
				return fleet.SiteOut{}, err
			}
			return fleet.SiteOut{Site: site}, store.AddEvents(ctx, tx, c.event("site.created", site.Version, map[string]any{"siteId": site.ID, "name": site.Name}))
		},
		Made: func(o fleet.SiteOut) string { return o.Site.ID },
	})
}

func (c *Call) siteTarget(id string) Target {
	return Target{Kind: fleet.OnSite, ID: id, OwnerTenant: c.TenantID}
}

func sitesGet(ctx context.Context, c *Call, in fleet.SiteIn) (fleet.SiteOut, error) {
	var site fleet.Site
	return Read(ctx, c, "", func(ctx context.Context, q store.Reader) (Target, error) {
		var err error
		site, err = store.LoadSite(ctx, q, c.TenantID, in.SiteID)
		return c.siteTarget(in.SiteID), err
	}, func(context.Context, store.Reader, Target) (fleet.SiteOut, error) {
		return fleet.SiteOut{Site: site}, nil
	})
}

func sitesPage(in fleet.SitesListIn) (pager, error) {
	return newPager("sites/list", in.PageIn, in.TenantIn, idCursor("siteId"))
}

func sitesList(ctx context.Context, c *Call, in fleet.SitesListIn) (fleet.SitesPage, error) {
	pg, err := sitesPage(in)
	if err != nil {
		return fleet.SitesPage{}, err
	}
	return ReadTenant(ctx, c, func(ctx context.Context, q store.Reader, _ Target) (fleet.SitesPage, error) {
		list, err := store.ListSites(ctx, q, c.TenantID, pg.after, pg.limit)
		if err != nil {
			return fleet.SitesPage{}, err
		}
		items, next := cut(pg, list, func(s fleet.Site) string { return s.ID })
		return fleet.SitesPage{Items: items, NextCursor: next}, nil
	})
}

func sitesUpdate(ctx context.Context, c *Call, in fleet.SitesUpdateIn) (fleet.SiteOut, error) {
	var before fleet.Site
	return Mutate(ctx, c, Mutation[fleet.SiteOut]{
		Find: func(ctx context.Context, tx pgx.Tx) (Target, error) {
			_, err := store.LoadSite(ctx, tx, c.TenantID, in.SiteID)
			return c.siteTarget(in.SiteID), err
		},
		Lock: func(ctx context.Context, tx pgx.Tx) (err error) {
			before, err = store.LockSite(ctx, tx, c.TenantID, in.SiteID)
			return err
		},
		Version: in.Version,
		Present: func(context.Context, pgx.Tx) (int64, error) { return before.Version, nil },
		Change: func(ctx context.Context, tx pgx.Tx) (fleet.SiteOut, error) {
			spec := before.SiteSpec
			applySite(&spec, in)
			if reflect.DeepEqual(spec, before.SiteSpec) {
				return fleet.SiteOut{Site: before}, nil
			}
			site, err := store.UpdateSite(ctx, tx, in.SiteID, spec)
			if err != nil {
				return fleet.SiteOut{}, err
			}
			if in.Paused != nil || in.MaxConcurrent != nil {
				// What waits for the site's pause or limits looks again.
				waiters, err := store.SiteWaiters(ctx, tx, in.SiteID)
				if err != nil {
					return fleet.SiteOut{}, err
				}
				if err := wake(ctx, tx, waiters); err != nil {
					return fleet.SiteOut{}, err
				}
			}
			return fleet.SiteOut{Site: site}, store.AddEvents(ctx, tx, c.event("site.updated", site.Version, map[string]any{"siteId": site.ID, "paused": site.Paused}))
		},
	})
}

func applySite(spec *fleet.SiteSpec, in fleet.SitesUpdateIn) {
	set(&spec.Name, in.Name)
	set(&spec.AllowedNetworks, in.AllowedNetworks)
	set(&spec.Paused, in.Paused)
	set(&spec.TokenOnlyJoin, in.TokenOnlyJoin)
	set(&spec.JoinBindsEnrolled, in.JoinBindsEnrolled)
	if in.FirmwareBaseline != nil {
		spec.FirmwareBaseline = in.FirmwareBaseline
	}
	if in.GPUModelNames != nil {
		spec.GPUModelNames = in.GPUModelNames
	}
	if in.Boot != nil {
		spec.Boot = in.Boot
	}
	if in.Timeouts != nil {
		spec.Timeouts = in.Timeouts
	}
	if in.GracefulSeconds != nil {
		spec.GracefulSeconds = in.GracefulSeconds
	}
	if in.MaxConcurrent != nil {
		spec.MaxConcurrent = in.MaxConcurrent
	}
}

// set sets a value where one was given.
func set[T any](at *T, given *T) {
	if given != nil {
		*at = *given
	}
}

// wake tells waiting operations to look again.
func wake(ctx context.Context, tx pgx.Tx, operations []string) error {
	rows := make([]store.DispatchIn, len(operations))
	for i, id := range operations {
		rows[i] = store.DispatchIn{Kind: store.DispatchSignal, OperationID: id, Signal: fleet.SignalWake}
	}
	return store.AddDispatch(ctx, tx, rows...)
}
