package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
)

// The kinds of places in a site's limits.
const (
	PlacePower  = "power"
	PlaceDeploy = "deploy"
	// placeBoth is a deploy that changes the power: it holds one of each.
	placeBoth = "deploy+power"
)

// lookAgain is how often a waiting operation looks by itself; what it waits for
// wakes it sooner.
const lookAgain = time.Minute

// CheckSafePoint judges whether an operation may start a step that could change
// power, boot or disk: the node's hold, the site's pause, then the site's limit
// of the kind, in the order in which the operations were made. Go takes the
// place.
func (s *Store) CheckSafePoint(ctx context.Context, operationID, kind string) (fleet.SafePoint, error) {
	var p fleet.SafePoint
	err := s.fenced(ctx, operationID, func(ctx context.Context, tx pgx.Tx, o fencedOp) error {
		p = fleet.SafePoint{Again: s.scaled(lookAgain)}
		var hold *fleet.Hold
		var site fleet.SiteSpec
		var siteID string
		var place *string
		err := tx.QueryRow(ctx, `SELECT n.hold, s.spec, s.id, o.place FROM nodes n JOIN sites s ON s.id = n.site_id JOIN operations o ON o.id = $2
			WHERE n.id = $1`, o.NodeID, o.ID).Scan(&hold, &site, &siteID, &place)
		if err != nil {
			return fmt.Errorf("read what may hold operation %s: %w", o.ID, err)
		}
		if w := heldBy(hold, site, o.Now); w != nil {
			p.WaitingFor = w
			// While it is held it stands in nobody's way.
			_, err := tx.Exec(ctx, `UPDATE operations SET place_wanted = NULL WHERE id = $1 AND place_wanted IS NOT NULL`, o.ID)
			return wrapDoing(err, "leave the queue of the site")
		}
		if kind == "" || orEmpty(place) == kind || orEmpty(place) == placeBoth {
			p.Go = true
			return nil
		}
		return takePlace(ctx, tx, o, siteID, site, kind, &p)
	})
	return p, err
}

// heldBy says what keeps every change away: the node's hold or the site's
// pause.
func heldBy(hold *fleet.Hold, site fleet.SiteSpec, now time.Time) *fleet.WaitingFor {
	switch {
	case hold.Active(now):
		return &fleet.WaitingFor{Actor: hold.By, What: "the node is held: " + hold.Reason, Since: fleet.At(now), Deadline: hold.Until,
			Then: "the operation goes on", YouCan: []string{"metal/unhold", "metal/abort"}}
	case site.Paused:
		return &fleet.WaitingFor{Actor: "site " + site.Name, What: "the site is paused", Since: fleet.At(now),
			Then: "the operation goes on", YouCan: []string{"sites/update with paused: false", "metal/abort"}}
	}
	return nil
}

func limit(site fleet.SiteSpec, kind string) *int {
	switch {
	case site.MaxConcurrent == nil:
		return nil
	case kind == PlacePower:
		return site.MaxConcurrent.Power
	default:
		return site.MaxConcurrent.Deploy
	}
}

// takePlace takes one of the site's places, or says that all are taken. The
// site's advisory lock makes counting and taking one act.
func takePlace(ctx context.Context, tx pgx.Tx, o fencedOp, siteID string, site fleet.SiteSpec, kind string, p *fleet.SafePoint) error {
	most := limit(site, kind)
	if most == nil {
		p.Go = true
		return nil
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('places:' || $1, 0))`, siteID); err != nil {
		return fmt.Errorf("lock the places of site %s: %w", siteID, err)
	}
	var taken, ahead int
	err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE o.place IN ($2, $4)),
		count(*) FILTER (WHERE o.place_wanted = $2 AND (o.created_at, o.id) < (SELECT created_at, id FROM operations WHERE id = $3))
		FROM operations o JOIN nodes n ON n.id = o.node_id
		WHERE n.site_id = $1 AND o.id <> $3 AND (o.place IS NOT NULL OR o.place_wanted IS NOT NULL)
		AND o.state IN ('pending', 'running', 'waiting')`, siteID, kind, o.ID, placeBoth).Scan(&taken, &ahead)
	if err != nil {
		return fmt.Errorf("count the places of site %s: %w", siteID, err)
	}
	if taken+ahead < *most {
		p.Go = true
		_, err = tx.Exec(ctx, `UPDATE operations SET place = CASE WHEN place = $3 AND $2 = $4 THEN $5 ELSE $2 END, place_wanted = NULL WHERE id = $1`,
			o.ID, kind, PlaceDeploy, PlacePower, placeBoth)
	} else {
		p.WaitingFor = &fleet.WaitingFor{Actor: "site " + site.Name, What: fmt.Sprintf("%d %s operation(s) at once is the site's limit; %d before this one", *most, kind, taken+ahead-*most+1),
			Since: fleet.At(o.Now), Then: "the operation goes on in its turn", YouCan: []string{"sites/update with another maxConcurrent", "metal/abort"}}
		_, err = tx.Exec(ctx, `UPDATE operations SET place_wanted = $2 WHERE id = $1`, o.ID, kind)
	}
	if err != nil {
		return fmt.Errorf("record the place of operation %s: %w", o.ID, err)
	}
	if p.Again > 5*time.Second {
		p.Again = 5 * time.Second
	}
	return nil
}

// scaled divides a wait by the time scale.
func (s *Store) scaled(d time.Duration) time.Duration {
	if s.TimeScale > 1 {
		return time.Duration(float64(d) / s.TimeScale)
	}
	return d
}
