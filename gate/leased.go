package gate

import (
	"context"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
)

// leased is a client whose every method ends with the lease.
type leased struct {
	client bmc.Client
	hold   *hold
}

var _ bmc.Client = (*leased)(nil)

// within runs one method of the client under the lease.
func within[T any](ctx context.Context, l *leased, do func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := l.hold.under(ctx)
	defer cancel()
	v, err := do(ctx)
	return v, l.hold.explain(err)
}

func (l *leased) only(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := l.hold.under(ctx)
	defer cancel()
	return l.hold.explain(do(ctx))
}

func (l *leased) Identify(ctx context.Context) (bmc.Found, error) {
	return within(ctx, l, l.client.Identify)
}

func (l *leased) Power(ctx context.Context) (bmc.PowerState, error) {
	return within(ctx, l, l.client.Power)
}

func (l *leased) SetPower(ctx context.Context, change bmc.PowerChange) (bmc.PowerResult, error) {
	return within(ctx, l, func(ctx context.Context) (bmc.PowerResult, error) { return l.client.SetPower(ctx, change) })
}

func (l *leased) Boot(ctx context.Context) (bmc.BootOverride, error) {
	return within(ctx, l, l.client.Boot)
}

func (l *leased) SetBoot(ctx context.Context, want bmc.BootOverride) error {
	return l.only(ctx, func(ctx context.Context) error { return l.client.SetBoot(ctx, want) })
}

func (l *leased) InsertMedia(ctx context.Context, imageURL string) error {
	return l.only(ctx, func(ctx context.Context) error { return l.client.InsertMedia(ctx, imageURL) })
}

func (l *leased) EjectMedia(ctx context.Context, keep func(url string) bool) error {
	return l.only(ctx, func(ctx context.Context) error { return l.client.EjectMedia(ctx, keep) })
}

func (l *leased) Inventory(ctx context.Context) (fleet.Inventory, error) {
	return within(ctx, l, l.client.Inventory)
}

func (l *leased) EraseDrives(ctx context.Context, serials []string) ([]fleet.DiskErase, error) {
	return within(ctx, l, func(ctx context.Context) ([]fleet.DiskErase, error) { return l.client.EraseDrives(ctx, serials) })
}

func (l *leased) SetPassword(ctx context.Context, password string) error {
	return l.only(ctx, func(ctx context.Context) error { return l.client.SetPassword(ctx, password) })
}

func (l *leased) Log(ctx context.Context, since time.Time) ([]bmc.LogEntry, error) {
	return within(ctx, l, func(ctx context.Context) ([]bmc.LogEntry, error) { return l.client.Log(ctx, since) })
}

func (l *leased) Close(ctx context.Context) error {
	return l.only(ctx, l.client.Close)
}
