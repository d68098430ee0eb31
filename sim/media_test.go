package sim_test

import (
	"net/http"
	"testing"

	"github.com/bettercompute/compute/sim"
)

func TestInsertAndEject(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	if r := b.insert(iso); r.status >= 300 {
		t.Fatalf("insert: %d %s", r.status, r.raw)
	}
	if doc := b.get(cdPath); doc["Inserted"] != true || doc["Image"] != iso {
		t.Errorf("inserted: %v %v", doc["Inserted"], doc["Image"])
	}
	if r := b.insert("http://images.example/other.iso"); r.status != http.StatusConflict || messageID(r) != "ResourceInUse" {
		t.Errorf("second insert: %d %s", r.status, messageID(r))
	}
	b.done(http.MethodPost, cdPath+"/Actions/VirtualMedia.EjectMedia", map[string]any{})
	if doc := b.get(cdPath); doc["Inserted"] != false {
		t.Errorf("after eject: %v", doc["Inserted"])
	}
	if got := b.m.Counts().InsertMedia; got != 2 {
		t.Errorf("InsertMedia counted: got %d, want 2", got)
	}
}

func TestInsertRefusals(t *testing.T) {
	t.Parallel()
	b := newBMC(t, sim.MachineSpec{Profile: "supermicro", Seed: 1})
	insert := "/redfish/v1/Managers/1/VirtualMedia/CD1/Actions/VirtualMedia.InsertMedia"
	for name, tt := range map[string]struct {
		body map[string]any
		id   string
	}{
		"no image":        {map[string]any{}, "ActionParameterMissing"},
		"image no URL":    {map[string]any{"Image": "x.iso"}, "ActionParameterValueNotInList"},
		"image no text":   {map[string]any{"Image": 4}, "PropertyValueTypeError"},
		"unknown":         {map[string]any{"Image": iso, "Wheels": 4}, "ActionParameterUnknown"},
		"other protocol":  {map[string]any{"Image": iso, "TransferProtocolType": "HTTPS"}, "ActionParameterValueNotInList"},
		"no such one":     {map[string]any{"Image": iso, "TransferProtocolType": "NFS"}, "ActionParameterValueNotInList"},
		"protection text": {map[string]any{"Image": iso, "WriteProtected": "yes"}, "PropertyValueTypeError"},
	} {
		r := b.call(http.MethodPost, insert, tt.body)
		if r.status != http.StatusBadRequest || messageID(r) != tt.id {
			t.Errorf("%s: got %d %s, want 400 %s", name, r.status, messageID(r), tt.id)
		}
	}
}

func TestSlotThatTakesNoMedium(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	slot := "/redfish/v1/Managers/bmc/VirtualMedia/Slot_0"
	if at(b.get(slot), "Actions", "#VirtualMedia.InsertMedia") != nil {
		t.Error("the slot offers InsertMedia")
	}
	if r := b.call(http.MethodPost, slot+"/Actions/VirtualMedia.InsertMedia", map[string]any{"Image": iso}); r.status != http.StatusNotFound {
		t.Errorf("insert: %d, want 404", r.status)
	}
}

func TestMediaUnderSystem(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.MediaUnder, spec.Systems = "system", 2
	b := newBMC(t, spec)
	b.done(http.MethodPost, sysPath+"2/VirtualMedia/Slot_2/Actions/VirtualMedia.InsertMedia", map[string]any{"Image": iso})
	if got := b.get(sysPath + "/VirtualMedia/Slot_2")["Inserted"]; got != false {
		t.Errorf("the other system's slot: %v, want false", got)
	}
	if r := b.call(http.MethodGet, cdPath, nil); r.status != http.StatusNotFound {
		t.Errorf("below the manager: %d, want 404", r.status)
	}
}

// TestSecureErase erases a drive by Redfish: a task, and the true state at its end.
func TestSecureErase(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.DiskContent = sim.ContentData
	b := newBMC(t, spec)
	drive, _ := at(b.get(sysPath+"/Storage/1"), "Drives", 0, "@odata.id").(string)
	doc := b.get(drive)
	target, _ := at(doc, "Actions", "#Drive.SecureErase", "target").(string)
	r := b.call(http.MethodPost, target, map[string]any{})
	if r.status != http.StatusAccepted {
		t.Fatalf("erase: %d %s", r.status, r.raw)
	}
	content := func() (c, e string) {
		for _, d := range b.m.View(true).Disks {
			if d.Serial == doc["SerialNumber"] {
				return d.Content, d.Erased
			}
		}
		return "", ""
	}
	if c, e := content(); c != sim.ContentData || e != "none" {
		t.Errorf("while the task runs: %s, erased %s", c, e)
	}
	b.r.Advance(2 * 60e9)
	if c, e := content(); c != sim.ContentEmpty || e != "full" {
		t.Errorf("at its end: %s, erased %s", c, e)
	}
}

// TestMediaByPatch inserts and ejects by writing the slot, as on services whose
// slots have no actions.
func TestMediaByPatch(t *testing.T) {
	t.Parallel()
	b := newBMC(t, sim.MachineSpec{Profile: "lenovo", Seed: 1, MediaUnder: "manager"})
	slot := "/redfish/v1/Managers/1/VirtualMedia/EXT1"
	r := b.call(http.MethodGet, slot, nil)
	if r.body["Actions"] != nil || r.header.Get("Allow") != "GET, HEAD, PATCH" {
		t.Errorf("actions %v, Allow %q", r.body["Actions"], r.header.Get("Allow"))
	}
	b.done(http.MethodPatch, slot, map[string]any{"Image": iso, "Inserted": true})
	if doc := b.get(slot); doc["Inserted"] != true || doc["Image"] != iso {
		t.Errorf("inserted: %v %v", doc["Inserted"], doc["Image"])
	}
	if r := b.call(http.MethodPatch, slot, map[string]any{"Image": iso}); r.status != http.StatusConflict {
		t.Errorf("into a full slot: %v", r)
	}
	b.done(http.MethodPatch, slot, map[string]any{"Image": nil, "Inserted": false})
	if doc := b.get(slot); doc["Inserted"] != false {
		t.Errorf("ejected: %v", doc["Inserted"])
	}
}
