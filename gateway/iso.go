package gateway

import (
	"encoding/binary"
	"errors"
)

// isoSector is the block size of ISO 9660.
const isoSector = 2048

// The places of the blocks of a medium with one file.
const (
	isoVolume     = 16
	isoTerminator = 17
	isoPathL      = 18
	isoPathM      = 19
	isoRoot       = 20
	isoFile       = 21
)

// configFileMax keeps the file in blocks that a BMC reads at once.
const configFileMax = 16 << 10

// configISO is a well-formed ISO 9660 medium whose only file is CONFIG.JSON. It
// boots nowhere: it is what is served where no boot image is configured, so that
// a BMC has a real medium to insert (simulated machines and trials).
func configISO(config []byte) ([]byte, error) {
	if len(config) > configFileMax {
		return nil, errors.New("the boot config is too large for a medium")
	}
	blocks := isoFile + max(1, (len(config)+isoSector-1)/isoSector)
	b := make([]byte, blocks*isoSector)
	block := func(n int) []byte { return b[n*isoSector : (n+1)*isoSector] }

	pvd := block(isoVolume)
	pvd[0] = 1
	copy(pvd[1:], "CD001\x01")
	padded(pvd[8:40], "COMPUTE")
	padded(pvd[40:72], "COMPUTE_BOOT")
	bothEndian32(pvd[80:], uint32(blocks))
	bothEndian16(pvd[120:], 1)
	bothEndian16(pvd[124:], 1)
	bothEndian16(pvd[128:], isoSector)
	bothEndian32(pvd[132:], 10)
	binary.LittleEndian.PutUint32(pvd[140:], isoPathL)
	binary.BigEndian.PutUint32(pvd[148:], isoPathM)
	copy(pvd[156:190], isoEntry("\x00", isoRoot, isoSector, true))
	for _, field := range [][]byte{pvd[190:318], pvd[318:446], pvd[446:574], pvd[574:702], pvd[702:739], pvd[739:776], pvd[776:813]} {
		padded(field, "")
	}
	for _, date := range []int{813, 830, 847, 864} {
		copy(pvd[date:], "0000000000000000") // not given, then the zone 0
	}
	pvd[881] = 1

	end := block(isoTerminator)
	end[0] = 255
	copy(end[1:], "CD001\x01")

	for n, order := range map[int]binary.ByteOrder{isoPathL: binary.LittleEndian, isoPathM: binary.BigEndian} {
		path := block(n)
		path[0] = 1
		order.PutUint32(path[2:], isoRoot)
		order.PutUint16(path[6:], 1)
	}

	root, at := block(isoRoot), 0
	for _, entry := range [][]byte{
		isoEntry("\x00", isoRoot, isoSector, true), isoEntry("\x01", isoRoot, isoSector, true),
		isoEntry("CONFIG.JSON;1", isoFile, len(config), false),
	} {
		at += copy(root[at:], entry)
	}
	copy(b[isoFile*isoSector:], config)
	return b, nil
}

// isoEntry is a directory record.
func isoEntry(name string, at, size int, dir bool) []byte {
	length := 33 + len(name)
	length += length % 2
	e := make([]byte, length)
	e[0] = byte(length)
	bothEndian32(e[2:], uint32(at))
	bothEndian32(e[10:], uint32(size))
	e[18], e[19], e[20] = 100, 1, 1 // 2000-01-01: the same medium has the same bytes
	if dir {
		e[25] = 2
	}
	bothEndian16(e[28:], 1)
	e[32] = byte(len(name))
	copy(e[33:], name)
	return e
}

func padded(field []byte, s string) {
	for i := copy(field, s); i < len(field); i++ {
		field[i] = ' '
	}
}

func bothEndian16(b []byte, v uint16) {
	binary.LittleEndian.PutUint16(b, v)
	binary.BigEndian.PutUint16(b[2:], v)
}

func bothEndian32(b []byte, v uint32) {
	binary.LittleEndian.PutUint32(b, v)
	binary.BigEndian.PutUint32(b[4:], v)
}
