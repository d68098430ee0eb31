package redfish

import "strings"

// meaning is what a message says, told by the last part of its id. Registries
// spell one meaning in many ways, and vendors add their own: beside the ids
// that are known, any id that holds one of the words has it.
type meaning struct {
	ids   map[string]bool
	words []string
	// but are meanings that an id with one of the words has instead.
	but []*meaning
}

func means(ids []string, words ...string) *meaning {
	m := &meaning{ids: map[string]bool{}}
	for _, id := range ids {
		m.ids[strings.ToLower(id)] = true
	}
	for _, w := range words {
		m.words = append(m.words, strings.ToLower(w))
	}
	return m
}

func (m *meaning) unless(others ...*meaning) *meaning {
	m.but = others
	return m
}

// has says whether the last part of a message id has this meaning.
func (m *meaning) has(key string) bool {
	key = strings.ToLower(key)
	if m.ids[key] {
		return true
	}
	for _, other := range m.but {
		if other.has(key) {
			return false
		}
	}
	for _, w := range m.words {
		if strings.Contains(key, w) {
			return true
		}
	}
	return false
}

// The meanings that decide, from the Base registry, iDRAC's SYS, SWC and RAC,
// and iLO's; the status decides where an answer has none of them.
var (
	// mustChange: the account can do nothing before its password is changed.
	mustChange = means([]string{"PasswordChangeRequired"}, "PasswordChangeRequired", "MustChangePassword", "PasswordExpired")
	// headerMissing: an If-Match is wanted. Some say so with 400.
	headerMissing = means([]string{"PreconditionHeaderMissing", "HeaderMissing", "PreconditionFailed", "PreconditionRequired"}, "IfMatch")
	// inPost: the machine's power-on self test is the reason, and ends.
	inPost = means([]string{"UnableToModifyDuringSystemPOST", "ServerPOSTInProgress", "InPOST", "SystemInPOST"},
		"DuringSystemPOST", "DuringPOST", "InPOST", "POSTInProgress", "InSystemPOST", "WhileInPost", "SystemPostNotComplete", "PostNotComplete")
	// tableFull: no session is free now. Some say so with 400 or 403.
	tableFull = means([]string{"SessionLimitExceeded", "CreateLimitReachedForResource", "RAC0218"},
		"SessionLimit", "SessionsLimit", "MaxSessions", "MaximumSessions", "TooManySessions", "NoFreeSession", "LimitReached")
	// notReady: the same request is good after a wait.
	notReady = means([]string{"ServiceTemporarilyUnavailable", "ServiceShuttingDown", "ServiceInUnknownState", "RateLimitExceeded", "SYS518", "SWC0700"},
		"NotReady", "TemporarilyUnavailable", "Unavailable", "Initializing", "Initialising", "StartingUp", "ShuttingDown", "ResetInProgress", "RebootInProgress", "TryAgain", "TryLater", "RetryLater")
	// taken: something else is at work.
	taken = means([]string{"ResourceInUse", "ResourceBusy", "DeviceBusy", "OperationInProgress", "TaskInProgress", "MaxJobsReached", "ResourceInStandby"},
		"InUse", "Busy", "InProgress", "InStandby", "AlreadyRunning")
	noSession = means([]string{"NoValidSession", "InvalidSession", "SessionTerminated", "SessionExpired", "NotLoggedIn"},
		"SessionExpired", "SessionTimeout", "InvalidToken", "TokenExpired")
	noRights = means([]string{"InsufficientPrivilege", "InsufficientPrivilegeForOperation", "AccountNotModified", "AccountForSessionNoLongerExists"},
		"InsufficientPrivilege")
	// remote are 4xx about what an image URL leads to, not about us.
	remote = means([]string{"ResourceAtUriUnauthorized", "ResourceAtUriInUnknownFormat", "CouldNotEstablishConnection", "SourceDoesNotSupportProtocol", "AccessDenied"},
		"ResourceAtUri")
	badValue = means([]string{"ActionParameterValueNotInList", "ActionParameterValueFormatError", "ActionParameterValueTypeError", "ActionParameterNotSupported", "ActionParameterUnknown", "PropertyValueNotInList", "PropertyValueFormatError", "ActionNotSupported"},
		"ValueNotInList", "ValueFormatError", "ValueTypeError")
	// omitted: a property or parameter should have been sent.
	omitted = means([]string{"PropertyMissing", "ActionParameterMissing", "CreateFailedMissingReqProperties", "MissingProperty", "MissingParameter", "ParameterMissing", "RequiredPropertyMissing", "MissingOrMalformedPart", "PropertyMustBeSpecified", "InsufficientParameters"},
		"Missing", "MustBeSpecified", "IsRequired", "PropertyRequired", "ParameterRequired").unless(mustChange, headerMissing)
	// unwritable: a property must not be sent.
	unwritable = means([]string{"PropertyNotWritable", "PropertyUnknown", "PropertyNotUpdated", "ActionParameterUnknown", "ActionParameterNotSupported", "UnsupportedProperty", "PropertyNotWritableOrUnknown", "PropertyReadOnly"},
		"NotWritable", "ReadOnly", "PropertyUnknown", "ParameterUnknown", "PropertyNotSupported", "ParameterNotSupported", "UnknownProperty")
	// elsewhere: the resource is written at another URI.
	elsewhere = means([]string{"OperationSupportedInFutureStateURI"}, "FutureStateURI")
)
