package fleet

import "strings"

// The prefixes of ids. An id is the prefix, an underscore and a ULID in
// lower-case Crockford base32.
const (
	KindNode         = "node"
	KindSite         = "site"
	KindPool         = "pool"
	KindOperation    = "op"
	KindAllocation   = "alloc"
	KindReservation  = "resv"
	KindJoinToken    = "join"
	KindBinding      = "bind"
	KindServiceToken = "svct"
	KindEvent        = "evt"
	KindRequest      = "req"
	KindCommand      = "cmd"
	KindErase        = "erase"
	KindDevice       = "dev"
)

// WorkflowID is the Temporal workflow id of an operation.
func WorkflowID(operationID string) string { return "op/" + operationID }

// OperationOfWorkflow returns the operation id of a workflow id made by
// WorkflowID, and whether it is one.
func OperationOfWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, "op/")
}
