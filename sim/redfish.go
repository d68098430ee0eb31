package sim

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// resource is one resource of the service: what can be done with it.
type resource struct {
	get   func(*request) object
	patch func(*request) *answer
	post  func(*request) *answer
	del   func(*request) *answer
}

// answer is the true answer to a request, computed from the true state. It
// changes nothing; what is to change is its act. The caller holds the lock.
func (m *Machine) answer(req *request) *answer {
	if req.path == "/redfish" {
		return &answer{status: http.StatusOK, body: object{"v1": serviceRoot + "/"}}
	}
	if refusal := m.admit(req); refusal != nil {
		return refusal
	}
	if req.path == serviceRoot+"/$metadata" {
		return metadataAnswer()
	}
	if id, ok := strings.CutPrefix(req.path, monitorsPath+"/"); ok && req.method == http.MethodGet {
		return m.readMonitor(req, id)
	}
	segments, ok := req.segments()
	if !ok {
		return m.notFound(req.path)
	}
	res := m.find(segments)
	if res == nil {
		return m.notFound(req.path)
	}
	return m.apply(req, res)
}

func (m *Machine) apply(req *request, res *resource) *answer {
	if req.method != http.MethodGet && req.badBody {
		return m.errorAnswer(http.StatusBadRequest, fault{id: "MalformedJSON",
			text: "The request body submitted was malformed JSON and could not be parsed by the receiving service."})
	}
	switch {
	case (req.method == http.MethodGet || req.method == http.MethodHead) && res.get != nil:
		return m.read(req, res)
	case req.method == http.MethodPatch && res.patch != nil:
		if refusal := m.precondition(req, res); refusal != nil {
			return refusal
		}
		return res.patch(req)
	case req.method == http.MethodPost && res.post != nil:
		return res.post(req)
	case req.method == http.MethodDelete && res.del != nil:
		return res.del(req)
	}
	return m.notAllowed(res.allow())
}

func (r *resource) allow() string {
	var out []string
	if r.get != nil {
		out = append(out, http.MethodGet, http.MethodHead)
	}
	if r.patch != nil {
		out = append(out, http.MethodPatch)
	}
	if r.post != nil {
		out = append(out, http.MethodPost)
	}
	if r.del != nil {
		out = append(out, http.MethodDelete)
	}
	return strings.Join(out, ", ")
}

func (m *Machine) read(req *request, res *resource) *answer {
	doc := res.get(req)
	if doc == nil {
		return m.notFound(req.path)
	}
	if m.vary.expand && req.query.Has("$expand") {
		m.expand(req, doc)
	}
	a := &answer{status: http.StatusOK, body: doc, header: map[string]string{"Allow": res.allow()}}
	tag := m.etag(doc)
	if m.spec.ETag == "header" || m.spec.ETag == "both" {
		a.header["ETag"] = tag
		if inm := req.header.Get("If-None-Match"); inm != "" && inm == tag {
			return &answer{status: http.StatusNotModified, header: a.header}
		}
	}
	if m.spec.ETag == "body" || m.spec.ETag == "both" {
		doc["@odata.etag"] = tag
	}
	return a
}

// expand replaces the links of a collection by what they lead to, one level deep.
func (m *Machine) expand(req *request, doc object) {
	members, ok := doc["Members"].([]any)
	if !ok {
		return
	}
	for i, e := range members {
		to, _ := e.(object)["@odata.id"].(string)
		segments, ok := (&request{path: cleanPath(to)}).segments()
		if !ok {
			continue
		}
		if res := m.find(segments); res != nil && res.get != nil {
			if full := res.get(req); full != nil {
				members[i] = full
			}
		}
	}
}

// volatile are members that change by themselves, and no ETag with them.
var volatile = []string{"DateTime", "@odata.etag", "BootProgress", "PercentComplete"}

// etag is the entity tag of a document in the machine's style.
func (m *Machine) etag(doc object) string {
	c := maps.Clone(doc)
	for _, k := range volatile {
		delete(c, k)
	}
	h := fnv.New64a()
	// A document of JSON values always encodes.
	b, _ := json.Marshal(c)
	h.Write(b)
	sum := h.Sum64()
	switch m.vary.etagStyle {
	case "strongHex":
		return fmt.Sprintf("%q", strconv.FormatUint(sum, 16))
	case "decimal":
		return fmt.Sprintf(`W/"%d"`, 1600000000+sum%100000000)
	default:
		return fmt.Sprintf(`W/"%08X"`, uint32(sum))
	}
}

// precondition checks If-Match where the machine shows ETags.
func (m *Machine) precondition(req *request, res *resource) *answer {
	want := req.header.Get("If-Match")
	if req.again || want == "" || want == "*" || m.spec.ETag == "none" || res.get == nil {
		return nil
	}
	if doc := res.get(req); doc == nil || want == m.etag(doc) {
		return nil
	}
	return m.errorAnswer(http.StatusPreconditionFailed, fault{id: "PreconditionFailed",
		text: "The ETag supplied did not match the ETag required to change this resource."})
}

// link is a reference to a resource.
func link(path string) object { return object{"@odata.id": path} }

func links(paths ...string) []any {
	out := make([]any, 0, len(paths))
	for _, p := range paths {
		out = append(out, link(p))
	}
	return out
}

// typed begins a document of a type in the version that the profile speaks.
func (m *Machine) typed(kind, path, id, name string) object {
	version := typeVersions[kind]
	if v, ok := m.prof.Types[kind]; ok {
		version = v
	}
	t := "#" + kind + "." + kind
	if version != "" {
		t = "#" + kind + "." + version + "." + kind
	}
	return object{"@odata.id": path, "@odata.type": t, "Id": id, "Name": name}
}

// dress adds what the vendor adds to documents of a type and leaves out what it
// leaves out.
func (m *Machine) dress(kind string, doc object) object {
	if extra, ok := m.prof.Extra[kind]; ok {
		merge(doc, extra)
	}
	for _, k := range m.prof.Absent[kind] {
		delete(doc, k)
	}
	return doc
}

// merge puts the members of extra into doc, objects member by member.
func merge(doc, extra object) {
	for k, v := range extra {
		inner, ok := v.(object)
		if have, both := doc[k].(object); ok && both {
			merge(have, inner)
			continue
		}
		doc[k] = v
	}
}

// typeVersions are the versions that a profile speaks which names no others.
var typeVersions = map[string]string{
	"ServiceRoot": "v1_15_0", "ComputerSystem": "v1_20_0", "Manager": "v1_14_0", "Chassis": "v1_21_0",
	"VirtualMedia": "v1_5_0", "Session": "v1_4_0", "SessionService": "v1_1_8", "AccountService": "v1_11_0",
	"ManagerAccount": "v1_9_0", "Role": "v1_3_0", "TaskService": "v1_2_0", "Task": "v1_5_1",
	"UpdateService": "v1_11_0", "SoftwareInventory": "v1_7_0", "Processor": "v1_16_0", "Memory": "v1_16_0",
	"EthernetInterface": "v1_8_0", "Storage": "v1_13_0", "StorageController": "v1_7_0", "Drive": "v1_16_0", "Bios": "v1_2_0",
	"PCIeDevice": "v1_9_0", "ActionInfo": "v1_3_0", "SimpleStorage": "v1_3_1", "Power": "v1_7_1", "Thermal": "v1_7_1",
	"NetworkAdapter": "v1_8_0", "SecureBoot": "v1_1_0", "ManagerNetworkProtocol": "v1_9_0",
	"HpeServerDevice": "v2_0_0", "HpeSmartStorage": "v2_0_0", "HpeSmartStorageArrayController": "v2_2_0",
	"HpeSmartStorageDiskDrive": "v2_1_0",
}

// collection is a resource collection in the machine's own order, in pages
// where the machine pages.
func (m *Machine) collection(req *request, kind, path, name string, members []string) object {
	order := seeded("order", m.vary.order, path)
	members = slices.Clone(members)
	order.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	doc := object{"@odata.id": path, "@odata.type": "#" + kind + "Collection." + kind + "Collection", "Name": name,
		"Members@odata.count": len(members)}
	skip, _ := strconv.Atoi(req.query.Get("$skip"))
	skip = min(max(0, skip), len(members))
	page := members[skip:]
	if n := m.vary.pageSize; n > 0 && len(page) > n {
		page = page[:n]
		doc["Members@odata.nextLink"] = fmt.Sprintf("%s?$skip=%d", path, skip+n)
	}
	doc["Members"] = links(m.slashed(page)...)
	return doc
}

// slashed gives links the slash at the end that some services write.
func (m *Machine) slashed(paths []string) []string {
	if !m.vary.slash {
		return paths
	}
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = p + "/"
	}
	return out
}

// changed accepts a change: in the status that this machine answers such changes
// with, at once or, with 202, in a task of its own.
func (m *Machine) changed(req *request, status int, do *answer) *answer {
	if req.again {
		return do
	}
	switch status {
	case http.StatusAccepted:
		return m.nativeTask(req, nativeTaskTime)
	case http.StatusOK:
		a := m.success(http.StatusOK)
		a.act = do.act
		if do.render != nil {
			a.body, a.render = nil, do.render
		}
		return a
	}
	return &answer{status: status, act: do.act}
}
