package sim

// erase makes what an erase makes of the disk.
func (d *Disk) erase(method string) {
	d.Image = nil
	d.Erased = method
	switch {
	case method == eraseFull:
		d.Content = ContentEmpty
	case d.Content != ContentEmpty:
		d.Content = ContentRemnants
	}
}

// beginWrite is the state of a disk whose writing has begun.
func (d *Disk) beginWrite() {
	d.Content, d.Erased, d.Image = ContentPartial, eraseNone, nil
}

// endWrite is the state of a disk that holds a whole image.
func (d *Disk) endWrite(image WrittenImage) {
	d.Content, d.Image = ContentImage, &image
}
