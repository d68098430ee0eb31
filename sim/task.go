package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	tasksPath    = serviceRoot + "/TaskService/Tasks"
	monitorsPath = serviceRoot + "/TaskService/TaskMonitors"
)

// Where a 202 names its task.
const (
	refLocation = "location"
	refLink     = "link"
	refBody     = "body"
	refNone     = "none"
)

var usualStates = []string{"New", "Running", "Completed"}

// nativeTask answers a change with a task of this service that does it.
func (m *Machine) nativeTask(req *request, takes time.Duration) *answer {
	id := strconv.Itoa(m.st.Serial + 1)
	task := Task{ID: id, Name: "Task " + id, Start: req.now, For: takes, States: usualStates, Status: "OK"}
	act := m.later(req, time.Time{})
	task.Act = &act
	a := m.taskAnswer(req, task, m.spec.TaskRef)
	a.task = &task
	return a
}

// ruledTask answers a request with a task that runs as a rule says.
func (m *Machine) ruledTask(req *request, r *TaskReply, acts bool, after time.Duration) *answer {
	id := strconv.Itoa(m.st.Serial + 1)
	task := Task{ID: id, Name: "Task " + id, Start: req.now, For: time.Duration(r.For), States: r.States, Status: r.Status}
	if len(task.States) == 0 {
		task.States = usualStates
	}
	if task.Status == "" {
		task.Status = "OK"
	}
	if acts {
		act := m.later(req, time.Time{})
		if after > 0 {
			act.At = req.now.Add(task.For + after)
			m.st.Deferred = append(m.st.Deferred, act)
		} else {
			task.Act = &act
		}
	}
	ref := r.Ref
	if ref == "" {
		ref = m.spec.TaskRef
	}
	m.addTask(task)
	return m.taskAnswer(req, task, ref)
}

func (m *Machine) addTask(t Task) {
	m.st.Serial++
	m.st.Tasks = append(m.st.Tasks, t)
	for i := 0; len(m.st.Tasks) > tasksKept && i < len(m.st.Tasks); {
		if old := m.st.Tasks[i]; old.Act == nil || old.Done {
			m.st.Tasks = slices.Delete(m.st.Tasks, i, i+1)
			continue
		}
		i++
	}
}

// taskAnswer is a 202 that names the task in one place.
func (m *Machine) taskAnswer(req *request, t Task, ref string) *answer {
	a := &answer{status: http.StatusAccepted, header: map[string]string{}}
	monitor := monitorsPath + "/" + t.ID
	if m.vary.order%2 == 0 {
		monitor = tasksPath + "/" + t.ID
	}
	switch ref {
	case refLocation:
		if m.vary.absoluteLocation {
			monitor = "https://" + req.host + monitor
		}
		a.header["Location"] = monitor
	case refLink:
		a.header["Link"] = fmt.Sprintf("<%s>; rel=monitor", monitor)
	case refBody:
		a.body = m.taskDocument(t, req.now)
	}
	return a
}

// state is the TaskState at a time: the states share the task's time, the last
// one is reached at its end.
func (t Task) state(now time.Time) string {
	last := len(t.States) - 1
	past := now.Sub(t.Start)
	if last == 0 || past >= t.For {
		return t.States[last]
	}
	return t.States[int(int64(past)*int64(last)/max(1, int64(t.For)))]
}

func (t Task) ended(now time.Time) bool { return now.Sub(t.Start) >= t.For }

func (m *Machine) taskDocument(t Task, now time.Time) object {
	doc := m.typed("Task", tasksPath+"/"+t.ID, t.ID, t.Name)
	doc["TaskState"] = t.state(now)
	doc["StartTime"] = t.Start.Format(time.RFC3339)
	doc["TaskMonitor"] = monitorsPath + "/" + t.ID
	doc["TaskStatus"] = "OK"
	doc["PercentComplete"] = 0
	doc["Messages"] = []any{}
	if t.ended(now) {
		doc["TaskStatus"] = t.Status
		doc["PercentComplete"] = 100
		doc["EndTime"] = t.Start.Add(t.For).Format(time.RFC3339)
		text := "The task with Id " + t.ID + " has ended."
		if t.Message != "" {
			text = t.Message
		}
		doc["Messages"] = []any{m.message(fault{id: "TaskEnded", text: text, args: []string{t.ID}})}
	} else if t.For > 0 {
		doc["PercentComplete"] = int(int64(now.Sub(t.Start)) * 100 / int64(t.For))
	}
	return m.dress("Task", doc)
}

func (m *Machine) findTask(id string) *Task {
	for i := range m.st.Tasks {
		if m.st.Tasks[i].ID == id {
			return &m.st.Tasks[i]
		}
	}
	return nil
}

func (m *Machine) findTaskService(rest []string) *resource {
	switch {
	case len(rest) == 0:
		return &resource{get: func(req *request) object {
			doc := m.typed("TaskService", serviceRoot+"/TaskService", "TaskService", "Task Service")
			doc["ServiceEnabled"] = true
			doc["DateTime"] = req.now.Format(time.RFC3339)
			doc["CompletedTaskOverWritePolicy"] = "Oldest"
			doc["Tasks"] = link(tasksPath)
			return m.dress("TaskService", doc)
		}}
	case rest[0] == "Tasks" && len(rest) == 1:
		return &resource{get: func(req *request) object {
			var paths []string
			for _, t := range m.st.Tasks {
				paths = append(paths, tasksPath+"/"+t.ID)
			}
			return m.collection(req, "Task", tasksPath, "Tasks", paths)
		}}
	case rest[0] == "Tasks" && len(rest) == 2:
		t := m.findTask(rest[1])
		if t == nil {
			return nil
		}
		return &resource{get: func(req *request) object { return m.taskDocument(*t, req.now) }}
	}
	return nil
}

// readMonitor answers a task monitor: 202 with the task while it runs, then what
// came of it.
func (m *Machine) readMonitor(req *request, id string) *answer {
	t := m.findTask(id)
	if t == nil {
		return m.notFound(req.path)
	}
	if !t.ended(req.now) {
		return &answer{status: http.StatusAccepted, body: m.taskDocument(*t, req.now),
			header: map[string]string{"Location": monitorsPath + "/" + id}}
	}
	return &answer{status: http.StatusOK, body: m.taskDocument(*t, req.now)}
}
