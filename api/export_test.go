package api

import (
	"reflect"

	"github.com/bettercompute/compute/fleet"
)

// Update says whether golden files are to be written anew.
func Update() bool { return *update }

// Decode says what the decoder finds wrong with an input of a method.
func Decode(m fleet.Method, body []byte) []fleet.FieldError {
	if wrong := wellFormed(body); wrong != nil {
		return []fleet.FieldError{*wrong}
	}
	d := &decoder{}
	d.object(reflect.New(reflect.TypeOf(m.In)).Elem(), body, "")
	return d.errs
}
