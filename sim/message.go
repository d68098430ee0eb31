package sim

import (
	"fmt"
	"net/http"
	"strings"
)

// object is a JSON object.
type object = map[string]any

// fault describes one error message before it is put in the machine's style.
type fault struct {
	id       string // last part of MessageId
	text     string // with %1, %2 for the arguments
	args     []string
	property string // JSON pointer of the property at fault
}

// errorAnswer is a refusal in the Redfish error shape.
func (m *Machine) errorAnswer(status int, faults ...fault) *answer {
	info := make([]any, 0, len(faults))
	for _, f := range faults {
		info = append(info, m.message(f))
	}
	code := m.vary.messages + ".GeneralError"
	if len(faults) == 1 && m.vary.text {
		code = m.vary.messages + "." + faults[0].id
	}
	return &answer{status: status, body: object{"error": object{
		"code":                  code,
		"message":               "See @Message.ExtendedInfo for more information.",
		"@Message.ExtendedInfo": info,
	}}}
}

func (m *Machine) message(f fault) object {
	args := make([]any, len(f.args))
	text := f.text
	for i, a := range f.args {
		args[i] = a
		text = strings.ReplaceAll(text, fmt.Sprintf("%%%d", i+1), a)
	}
	msg := object{"MessageId": m.vary.messages + "." + f.id, "MessageArgs": args}
	if m.vary.text {
		msg["@odata.type"] = "#Message.v1_1_1.Message"
		msg["Message"] = text
		msg["Severity"] = "Warning"
		msg["Resolution"] = "None."
	}
	if f.property != "" {
		msg["RelatedProperties"] = []any{"#" + f.property}
	}
	return msg
}

func (m *Machine) success(status int) *answer {
	a := &answer{status: status}
	if status == http.StatusOK {
		a.body = object{"error": object{
			"code":    m.vary.messages + ".Success",
			"message": "Successfully Completed Request",
			"@Message.ExtendedInfo": []any{
				m.message(fault{id: "Success", text: "Successfully Completed Request"}),
			},
		}}
	}
	return a
}

func (m *Machine) notFound(path string) *answer {
	return m.errorAnswer(http.StatusNotFound, fault{id: "ResourceMissingAtURI",
		text: "The resource at the URI %1 was not found.", args: []string{path}})
}

func (m *Machine) notAllowed(allow string) *answer {
	a := m.errorAnswer(http.StatusMethodNotAllowed, fault{id: "OperationNotAllowed",
		text: "The HTTP method is not allowed on this resource."})
	a.header = map[string]string{"Allow": allow}
	return a
}

func (m *Machine) propertyUnknown(pointer string) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "PropertyUnknown", property: pointer,
		text: "The property %1 is not in the list of valid properties for the resource.", args: []string{lastToken(pointer)}})
}

func (m *Machine) propertyNotWritable(pointer string) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "PropertyNotWritable", property: pointer,
		text: "The property %1 is a read only property and cannot be assigned a value.", args: []string{lastToken(pointer)}})
}

func (m *Machine) propertyType(pointer string, v any) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "PropertyValueTypeError", property: pointer,
		text: "The value %1 for the property %2 is of a different type than the property can accept.",
		args: []string{fmt.Sprint(v), lastToken(pointer)}})
}

func (m *Machine) valueNotInList(pointer string, v any) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "PropertyValueNotInList", property: pointer,
		text: "The value %1 for the property %2 is not in the list of acceptable values.",
		args: []string{fmt.Sprint(v), lastToken(pointer)}})
}

func (m *Machine) propertyMissing(pointer string) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "PropertyMissing", property: pointer,
		text: "The property %1 is a required property and must be included in the request.", args: []string{lastToken(pointer)}})
}

func (m *Machine) parameterMissing(action, name string) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "ActionParameterMissing", property: "/" + name,
		text: "The action %1 requires the parameter %2 to be present in the request body.", args: []string{action, name}})
}

func (m *Machine) parameterValue(action, name string, v any) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "ActionParameterValueNotInList", property: "/" + name,
		text: "The value %1 for the parameter %2 in the action %3 is not in the list of acceptable values.",
		args: []string{fmt.Sprint(v), name, action}})
}

func (m *Machine) parameterUnknown(action, name string) *answer {
	return m.errorAnswer(http.StatusBadRequest, fault{id: "ActionParameterUnknown", property: "/" + name,
		text: "The action %1 was submitted with the invalid parameter %2.", args: []string{action, name}})
}

func (m *Machine) unauthorized() *answer {
	a := m.errorAnswer(http.StatusUnauthorized, fault{id: "NoValidSession",
		text: "There is no valid session established with the implementation."})
	a.header = map[string]string{"WWW-Authenticate": `Basic realm="Redfish"`}
	return a
}

func (m *Machine) insufficientPrivilege() *answer {
	return m.errorAnswer(http.StatusForbidden, fault{id: "InsufficientPrivilege",
		text: "There are insufficient privileges for the account or credentials associated with the current session to perform the requested operation."})
}

func (m *Machine) resourceInUse() *answer {
	return m.errorAnswer(http.StatusConflict, fault{id: "ResourceInUse",
		text: "The change to the requested resource failed because the resource is in use or in transition."})
}

func lastToken(pointer string) string {
	return pointer[strings.LastIndexByte(pointer, '/')+1:]
}
