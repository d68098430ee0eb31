package api

// Update says whether golden files are to be written anew.
func Update() bool { return *update }
