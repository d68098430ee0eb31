"""Drives one simulated machine through sushy, as Ironic would, and prints what it saw.

Arguments: URL, user, password, control URL, machine id, CA file. Each wait is a poll of
the service; the rack's clock runs fast.
"""
import json
import sys
import time
import urllib.request

import sushy
from sushy import exceptions

url, user, password, control, machine, ca = sys.argv[1:7]


def true_state():
    with urllib.request.urlopen("%s/sim/machines/%s" % (control, machine)) as r:
        return json.load(r)


def wait(what, ok):
    for _ in range(600):
        if ok():
            return
        time.sleep(0.02)
    sys.exit("never happened: " + what)


root = sushy.Sushy(url, username=user, password=password, verify=ca)
seen = {"redfish": root.redfish_version}

# A system without a Reset action is a part of the machine, not the machine.
# sushy cannot even read one that has no Actions at all.
candidates = []
collection = root.get_system_collection()
for path in collection.members_identities:
    try:
        member = collection.get_member(path)
        member.get_allowed_reset_system_values()
        candidates.append(member)
    except (exceptions.MissingActionError, exceptions.MissingAttributeError):
        pass
if len(candidates) != 1:
    sys.exit("candidates: %s" % [c.path for c in candidates])
system = candidates[0]
seen["uuid"], seen["serial"] = system.uuid, system.serial_number
seen["processors"] = len([p for p in system.processors.get_members() if p.processor_type == sushy.PROCESSOR_TYPE_CPU])
seen["memoryGiB"] = system.memory_summary.size_gib if system.memory_summary else None
seen["nics"] = len(system.ethernet_interfaces.summary)
manager = root.get_manager_collection().get_members()[0]
seen["firmware"] = manager.firmware_version


def cd_slot():
    """The first slot of a manager that takes a CD (this sushy looks nowhere else)."""
    for owner in system.managers:
        for slot in owner.virtual_media.get_members():
            if sushy.VIRTUAL_MEDIA_CD not in (slot.media_types or []):
                continue
            try:
                slot._get_insert_media_uri()
            except exceptions.MissingActionError:
                continue
            return slot
    sys.exit("no slot for a CD")


slot = cd_slot()
image = control + "/images/demo.iso"
slot.insert_media(image)
wait("inserted", lambda: true_state()["media"] and any(m["inserted"] for m in true_state()["media"]))
slot.refresh(force=True)
seen["inserted"], seen["image"] = slot.inserted, slot.image == image

if system.boot.mode == sushy.BOOT_SOURCE_MODE_UEFI:
    system.set_system_boot_options(target=sushy.BOOT_SOURCE_TARGET_CD, enabled=sushy.BOOT_SOURCE_ENABLED_ONCE)
else:
    system.set_system_boot_source(sushy.BOOT_SOURCE_TARGET_CD, enabled=sushy.BOOT_SOURCE_ENABLED_ONCE)


def overridden():
    state = true_state()["state"]["systems"][0]
    # sushy asks a Supermicro that offers it for UsbCd.
    return (state.get("pending") or state["override"])["target"] in ("Cd", "UsbCd")


wait("override", overridden)


def power(wanted):
    system.refresh(force=True)
    return system.power_state == wanted


system.reset_system(sushy.RESET_ON)
wait("on", lambda: power(sushy.SYSTEM_POWER_STATE_ON))


def boots():
    with urllib.request.urlopen("%s/sim/machines/%s/bootlog" % (control, machine)) as r:
        return json.load(r)["items"]


wait("boot", boots)
seen["boot"] = boots()[0]["source"]
slot.eject_media()
wait("ejected", lambda: not any(m["inserted"] for m in true_state()["media"]))



# A restart that boots from the network, once.
def boot_once(target):
    if system.boot.mode == sushy.BOOT_SOURCE_MODE_UEFI:
        system.set_system_boot_options(target=target, enabled=sushy.BOOT_SOURCE_ENABLED_ONCE)
    else:
        system.set_system_boot_source(target, enabled=sushy.BOOT_SOURCE_ENABLED_ONCE)


def out_of_post():
    return not true_state().get("post")


wait("end of POST", out_of_post)
system.refresh(force=True)
boot_once(sushy.BOOT_SOURCE_TARGET_PXE)
before = len(boots())
system.reset_system(sushy.RESET_FORCE_RESTART)
wait("restart", lambda: len(boots()) > before)
seen["restart"] = boots()[-1]["source"]
system.refresh(force=True)
seen["overrideAfter"] = str(system.boot.enabled)
wait("end of POST", out_of_post)
system.reset_system(sushy.RESET_FORCE_OFF)
wait("off", lambda: power(sushy.SYSTEM_POWER_STATE_OFF))
print(json.dumps(seen))
