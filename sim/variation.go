package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

// variation is what a machine's seed decided within what its profile leaves
// open, so that no client can lean on one way of answering.
type variation struct {
	system, manager, chassis string
	etag, etagStyle          string
	messages                 string
	text                     bool
	reset, patch             int
	insert, eject, delete    int
	taskRef                  string
	expand                   bool
	pageSize                 int
	slash                    bool
	resetFrom                string
	during                   string
	bootHome                 string
	mediaUnder               string
	adminUser                string
	oui                      string
	order                    uint64 // seeds the order of collections
	absoluteLocation         bool
	killSessions             bool // a password change ends the account's sessions
}

// seeded is a source of numbers for one purpose of one machine.
func seeded(parts ...any) *rand.Rand {
	h := sha256.New()
	for _, p := range parts {
		switch v := p.(type) {
		case string:
			h.Write([]byte(v))
		case uint64:
			h.Write(binary.BigEndian.AppendUint64(nil, v))
		case int:
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(v)))
		}
		h.Write([]byte{0})
	}
	s := h.Sum(nil)
	return rand.New(rand.NewPCG(binary.BigEndian.Uint64(s), binary.BigEndian.Uint64(s[8:])))
}

func pick[T any](r *rand.Rand, from []T, otherwise T) T {
	// One number is drawn in any case, so that what one list holds does not
	// change the choices after it.
	n := r.Uint64()
	if len(from) == 0 {
		return otherwise
	}
	return from[n%uint64(len(from))]
}

func vary(p *profile, seed uint64) variation {
	r := seeded("variation", seed)
	return variation{
		system:  pick(r, p.IDs.System, "1"),
		manager: pick(r, p.IDs.Manager, "1"),
		chassis: pick(r, p.IDs.Chassis, "1"),

		etag:      pick(r, p.Vary.ETag, "both"),
		etagStyle: pick(r, p.Vary.ETagStyle, "weakHex"),
		messages:  pick(r, p.Vary.Messages, "Base.1.8"),
		text:      pick(r, p.Vary.Text, true),
		reset:     pick(r, p.Vary.Reset, 204),
		patch:     pick(r, p.Vary.Patch, 200),
		insert:    pick(r, p.Vary.Insert, 204),
		eject:     pick(r, p.Vary.Eject, 204),
		delete:    pick(r, p.Vary.Delete, 204),
		taskRef:   pick(r, p.Vary.TaskRef, "location"),
		expand:    pick(r, p.Vary.Expand, false),
		pageSize:  pick(r, p.Vary.PageSize, 0),
		slash:     pick(r, p.Vary.Slash, false),

		resetFrom:  pick(r, p.Reset.From, "inline"),
		during:     pick(r, p.Reset.During, "old"),
		bootHome:   pick(r, p.Boot.Home, "live"),
		mediaUnder: pick(r, p.Media.Under, "manager"),
		adminUser:  pick(r, p.AdminUser, "admin"),
		oui:        pick(r, p.OUI, "020000"),

		order:            r.Uint64(),
		absoluteLocation: r.Uint64()%2 == 0,
		killSessions:     r.Uint64()%2 == 0,
	}
}
