package sim

import (
	"embed"
	"fmt"
	"path"
	"sort"
	"strings"
	"sync"
)

//go:embed profiles/*.yaml
var profileFiles embed.FS

// profile is a vendor's ways, as data: identifiers, names, versions, what is
// offered and where it is found. Lists of alternatives are chosen from by the
// machine's seed.
type profile struct {
	Name string `yaml:"name"`
	// Sources name the recorded tree or public document each shape comes from.
	Sources        []string          `yaml:"sources"`
	Vendor         string            `yaml:"vendor"`
	Product        string            `yaml:"product"`
	RedfishVersion string            `yaml:"redfishVersion"`
	AdminUser      []string          `yaml:"adminUser"`
	IDs            profileIDs        `yaml:"ids"`
	Names          profileNames      `yaml:"names"`
	Types          map[string]string `yaml:"types"`
	ManagerModel   string            `yaml:"managerModel"`
	Reset          profileReset      `yaml:"reset"`
	Boot           profileBoot       `yaml:"boot"`
	Media          profileMedia      `yaml:"media"`
	Storage        profileStorage    `yaml:"storage"`
	// GPUs says where GPUs are listed: processors, pcieDevices, devices (HPE's
	// own collection) or baseboard (a second system).
	GPUs      string             `yaml:"gpus"`
	Baseboard *profileBaseboard  `yaml:"baseboard"`
	Accounts  profileAccounts    `yaml:"accounts"`
	Sessions  profileSessions    `yaml:"sessions"`
	Vary      profileVary        `yaml:"vary"`
	Extra     map[string]object  `yaml:"extra"`
	Hardware  []hardwareTemplate `yaml:"hardware"`
	OUI       []string           `yaml:"oui"`
	// Absent lists members that the vendor does not show, by resource type.
	Absent map[string][]string `yaml:"absent"`
}

type profileIDs struct {
	System  []string `yaml:"system"`
	Manager []string `yaml:"manager"`
	Chassis []string `yaml:"chassis"`
	Storage string   `yaml:"storage"`
	// Settings is the last path element of the system's settings resource.
	Settings string `yaml:"settings"`
}

type profileNames struct {
	Root    string `yaml:"root"`
	System  string `yaml:"system"`
	Manager string `yaml:"manager"`
	// PadModel pads CPU model names with blanks to this length.
	PadModel int `yaml:"padModel"`
}

type profileReset struct {
	Types []string `yaml:"types"`
	// From is where the types are listed: inline, actionInfo or none.
	From []string `yaml:"from"`
	// During is the PowerState shown in a transition: old or transitional.
	During []string `yaml:"during"`
}

type profileBoot struct {
	Targets []string `yaml:"targets"`
	// Mode is the mode shown; empty = the member is absent.
	Mode  string   `yaml:"mode"`
	Modes []string `yaml:"modes"`
	// HTTPBoot offers UefiHttp with an HttpBootUri.
	HTTPBoot bool     `yaml:"httpBoot"`
	Home     []string `yaml:"home"`
	Progress bool     `yaml:"progress"`
	Enabled  bool     `yaml:"listEnabled"`
}

type profileMedia struct {
	Under []string `yaml:"under"`
	Slots []struct {
		ID    string   `yaml:"id"`
		Name  string   `yaml:"name"`
		Types []string `yaml:"types"`
		// NoInsert leaves the slot without an InsertMedia action.
		NoInsert bool `yaml:"noInsert"`
		// Patch has media inserted and ejected by a PATCH of the slot, without actions.
		Patch bool `yaml:"patch"`
	} `yaml:"slots"`
	// EmptyImage is what Image shows without a medium: "null", "empty", "absent" or text.
	EmptyImage        string   `yaml:"emptyImage"`
	TransferProtocols []string `yaml:"transferProtocols"`
}

type profileStorage struct {
	// Layout is storage, simpleStorage or smartStorage.
	Layout      string `yaml:"layout"`
	SecureErase bool   `yaml:"secureErase"`
}

type profileBaseboard struct {
	ID           string `yaml:"id"`
	Manager      string `yaml:"manager"`
	Chassis      string `yaml:"chassis"`
	Manufacturer string `yaml:"manufacturer"`
	Model        string `yaml:"model"`
}

type profileAccounts struct {
	// IDs is number or name.
	IDs string `yaml:"ids"`
	// First is the number of the administrator's account.
	First int `yaml:"first"`
	// Slots is the number of fixed account slots; 0 = accounts are created by POST.
	Slots            int      `yaml:"slots"`
	MinPassword      int      `yaml:"minPassword"`
	MaxPassword      int      `yaml:"maxPassword"`
	LockoutThreshold int      `yaml:"lockoutThreshold"`
	LockoutDuration  Duration `yaml:"lockoutDuration"`
}

type profileSessions struct {
	Limit int `yaml:"limit"`
	// ID is number, random or name.
	ID string `yaml:"id"`
}

type profileVary struct {
	ETag      []string `yaml:"etag"`
	ETagStyle []string `yaml:"etagStyle"`
	Messages  []string `yaml:"messages"`
	// Text says whether errors carry a human text.
	Text     []bool   `yaml:"text"`
	Reset    []int    `yaml:"reset"`
	Patch    []int    `yaml:"patch"`
	Insert   []int    `yaml:"insert"`
	Eject    []int    `yaml:"eject"`
	Delete   []int    `yaml:"delete"`
	TaskRef  []string `yaml:"taskRef"`
	Expand   []bool   `yaml:"expand"`
	PageSize []int    `yaml:"pageSize"`
	Slash    []bool   `yaml:"slash"`
}

var loadProfiles = sync.OnceValues(func() (map[string]*profile, error) {
	entries, err := profileFiles.ReadDir("profiles")
	if err != nil {
		return nil, err
	}
	all := make(map[string]*profile, len(entries))
	for _, e := range entries {
		b, err := profileFiles.ReadFile(path.Join("profiles", e.Name()))
		if err != nil {
			return nil, err
		}
		p := new(profile)
		if err := decodeYAML(b, p); err != nil {
			return nil, fmt.Errorf("profile %s: %w", e.Name(), err)
		}
		if p.Name != strings.TrimSuffix(e.Name(), ".yaml") {
			return nil, fmt.Errorf("profile %s: its name is %q", e.Name(), p.Name)
		}
		all[p.Name] = p
	}
	return all, nil
})

func findProfile(name string) (*profile, error) {
	all, err := loadProfiles()
	if err != nil {
		return nil, err
	}
	p, ok := all[name]
	if !ok {
		return nil, fmt.Errorf("profile %q: there is %s", name, strings.Join(Profiles(), ", "))
	}
	return p, nil
}

// Profiles lists the names of the vendor profiles.
func Profiles() []string {
	all, err := loadProfiles()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(all))
	for n := range all {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

func (p *profile) model(name string) (*hardwareTemplate, error) {
	for i := range p.Hardware {
		if p.Hardware[i].Model == name {
			return &p.Hardware[i], nil
		}
	}
	return nil, fmt.Errorf("profile %s has no model %q", p.Name, name)
}
