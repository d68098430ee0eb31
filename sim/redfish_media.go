package sim

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
)

// findMedia is the virtual media of one owner, below the collection's path.
func (m *Machine) findMedia(owner int, base string, rest []string) *resource {
	slots := m.st.Systems[owner].Media
	if len(rest) == 0 {
		return &resource{get: func(req *request) object {
			var paths []string
			for _, s := range slots {
				paths = append(paths, base+"/"+s.ID)
			}
			return m.collection(req, "VirtualMedia", base, "Virtual Media Services", paths)
		}}
	}
	n := slices.IndexFunc(slots, func(s Medium) bool { return s.ID == rest[0] })
	if n < 0 {
		return nil
	}
	at := slot{owner, n, base + "/" + slots[n].ID}
	shape := m.prof.Media.Slots[n]
	switch strings.Join(rest[1:], "/") {
	case "":
		res := &resource{get: func(*request) object { return m.mediumDocument(at) }}
		if shape.Patch {
			res.patch = func(req *request) *answer { return m.patchMedium(req, at) }
		}
		return res
	case "Actions/VirtualMedia.InsertMedia":
		if shape.NoInsert || shape.Patch {
			return nil
		}
		return &resource{post: func(req *request) *answer { return m.postInsert(req, at) }}
	case "Actions/VirtualMedia.EjectMedia":
		if shape.Patch {
			return nil
		}
		return &resource{post: func(req *request) *answer { return m.postEject(req, at) }}
	}
	return nil
}

// slot is one virtual media slot: its owner among the systems, its number there
// and its path.
type slot struct {
	owner, n int
	path     string
}

func (m *Machine) medium(at slot) *Medium { return &m.st.Systems[at.owner].Media[at.n] }

func (m *Machine) mediumDocument(at slot) object {
	md := m.medium(at)
	shape := m.prof.Media.Slots[at.n]
	doc := m.typed("VirtualMedia", at.path, md.ID, shape.Name)
	doc["MediaTypes"] = anyList(md.Types)
	doc["Inserted"] = md.Inserted
	doc["WriteProtected"] = md.WriteProtected
	doc["ConnectedVia"] = "NotConnected"
	if md.Inserted {
		doc["ConnectedVia"] = "URI"
		doc["Image"] = md.Image
		doc["ImageName"] = path.Base(md.Image)
	} else {
		switch m.prof.Media.EmptyImage {
		case "absent":
		case "null":
			doc["Image"], doc["ImageName"] = nil, nil
		case "empty":
			doc["Image"], doc["ImageName"] = "", ""
		default:
			doc["Image"], doc["ImageName"] = m.prof.Media.EmptyImage, m.prof.Media.EmptyImage
		}
	}
	if shape.Patch {
		return m.dress("VirtualMedia", doc)
	}
	actions := object{"#VirtualMedia.EjectMedia": object{"target": at.path + "/Actions/VirtualMedia.EjectMedia"}}
	if !shape.NoInsert {
		insert := object{"target": at.path + "/Actions/VirtualMedia.InsertMedia"}
		if p := m.prof.Media.TransferProtocols; len(p) > 0 {
			insert["TransferProtocolType@Redfish.AllowableValues"] = anyList(p)
		}
		actions["#VirtualMedia.InsertMedia"] = insert
	}
	doc["Actions"] = actions
	return m.dress("VirtualMedia", doc)
}

const insertAction = "VirtualMedia.InsertMedia"

func (m *Machine) postInsert(req *request, at slot) *answer {
	if refusal := m.judgeInsert(req); refusal != nil {
		return refusal
	}
	if m.medium(at).Inserted {
		return m.resourceInUse()
	}
	return m.insertInto(req, at)
}

// insertInto is the answer to an insertion that has been judged.
func (m *Machine) insertInto(req *request, at slot) *answer {
	image, _ := req.body["Image"].(string) // judged above
	protected, given := req.body["WriteProtected"].(bool)
	do := &answer{status: http.StatusNoContent}
	do.act = func(time.Time) {
		md := m.medium(at)
		md.Inserted, md.Image, md.WriteProtected = true, image, protected || !given
	}
	do.render = func() object { return m.mediumDocument(at) }
	return m.changed(req, m.vary.insert, do)
}

func (m *Machine) judgeInsert(req *request) *answer {
	for k, v := range req.body {
		switch k {
		case "Image", "TransferProtocolType", "TransferMethod", "MediaType", "UserName", "Password":
			if _, ok := v.(string); !ok {
				return m.propertyType("/"+k, v)
			}
		case "Inserted", "WriteProtected":
			if _, ok := v.(bool); !ok {
				return m.propertyType("/"+k, v)
			}
		default:
			return m.parameterUnknown(insertAction, k)
		}
	}
	image, ok := req.body["Image"].(string)
	if !ok {
		return m.parameterMissing(insertAction, "Image")
	}
	u, err := url.Parse(image)
	if err != nil || u.Host == "" {
		return m.parameterValue(insertAction, "Image", image)
	}
	if p, ok := req.body["TransferProtocolType"].(string); ok {
		allowed := m.prof.Media.TransferProtocols
		if len(allowed) > 0 && !slices.Contains(allowed, p) || !strings.EqualFold(p, u.Scheme) {
			return m.parameterValue(insertAction, "TransferProtocolType", p)
		}
	}
	return nil
}

func (m *Machine) postEject(req *request, at slot) *answer {
	do := &answer{status: http.StatusNoContent}
	do.act = func(time.Time) {
		md := m.medium(at)
		md.Inserted, md.Image, md.WriteProtected = false, "", true
	}
	do.render = func() object { return m.mediumDocument(at) }
	return m.changed(req, m.vary.eject, do)
}

// patchMedium inserts or ejects by writing the slot's own members.
func (m *Machine) patchMedium(req *request, at slot) *answer {
	if image, given := req.body["Image"]; given && image == nil || req.body["Inserted"] == false {
		return m.postEject(req, at)
	}
	if refusal := m.judgeInsert(req); refusal != nil {
		return refusal
	}
	if m.medium(at).Inserted {
		return m.resourceInUse()
	}
	return m.insertInto(req, at)
}
