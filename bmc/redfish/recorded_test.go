package redfish_test

// expected is every recorded tree with what is in it. The values were printed by
// the driver and then compared with the files one by one.
var expected = []struct {
	name, system, found string
	want                facts
}{
	{
		name: "DL325", system: "",
		found: `/redfish/v1/Systems/1 on key=uuid:36383150-3630-584d-5130-313930323042 fw="iLO 5 v2.46" types=7 mode="UEFI" override=true cd=true http=false`,
		want: facts{
			System:    "HPE|ProLiant DL325 Gen10 Plus|MXQ019020B|36383150-3630-584d-5130-313930323042",
			MemoryMiB: 65536, BIOS: "A43 v2.52 (10/29/2021)", TPM: "true 2.0", Health: "OK", BIOSAttributes: true,
			CPUs: []string{
				"Proc 1: AMD EPYC 7302P 16-Core Processor 16/32 x86_64",
			},
			DIMMs: []string{
				"PROC 1 DIMM 1: 16384 DDR4 HMA82GR7CJR4N-XN 438AD388",
				"PROC 1 DIMM 14: 16384 DDR4 HMA82GR7CJR4N-XN 438AD2AF",
				"PROC 1 DIMM 16: 16384 DDR4 HMA82GR7CJR4N-XN 438AED08",
				"PROC 1 DIMM 3: 16384 DDR4 HMA82GR7CJR4N-XN 438AD387",
			},
			NICs: []string{
				"bond0: 94:40:c9:5c:86:bc 25000 up",
				"bond0: 14:02:ec:d9:3a:a0 25000 up",
				"mgmt1: 14:02:ec:d9:3a:a1 0 down",
				"mgmt3: 94:40:c9:5c:86:bd 0 down",
			},
			PCI: []string{
				"137: Embedded Video Controller  ",
				"138: AH2010406-38 A REE1950F79864 nic",
				"140: AH2010414-31 A REE1939F35261 nic",
			},
			Firmware: []string{
				"13",
				"System ROM A43 v2.52 (10/29/2021)",
				"iLO 5 2.46 May 11 2021",
			},
			Missing: []string{
				"disks: the service shows none, neither under Storage nor in HPE's SmartStorage",
			},
		},
	},
	{
		name: "XL675d_A40", system: "",
		found: `/redfish/v1/Systems/1 on key=uuid:38334c44-4735-534a-3035-4e5031303732 fw="iLO 5 v2.55" types=7 mode="" override=true cd=true http=false`,
		want: facts{
			System:    "HPE|ProLiant XL675d Gen10 Plus|JS05NP1072|38334c44-4735-534a-3035-4e5031303732",
			MemoryMiB: 262144, BIOS: "A47 v2.52 (10/29/2021)", TPM: "false ", Health: "OK", BIOSAttributes: true,
			CPUs: []string{
				"Proc 1: AMD EPYC 7742 64-Core Processor 64/128 x86_64",
				"Proc 2: AMD EPYC 7742 64-Core Processor 64/128 x86_64",
			},
			DIMMs: []string{
				"PROC 1 DIMM 1: 16384 DDR4 18ASF2G72PZ-3G2E2 2837A69D",
				"PROC 1 DIMM 10: 16384 DDR4 18ASF2G72PZ-3G2E2 2837A6DF",
				"PROC 1 DIMM 12: 16384 DDR4 18ASF2G72PZ-3G2E2 2837BFE6",
				"PROC 1 DIMM 14: 16384 DDR4 18ASF2G72PZ-3G2E2 283762DF",
				"PROC 1 DIMM 16: 16384 DDR4 18ASF2G72PZ-3G2E2 28375F45",
				"PROC 1 DIMM 3: 16384 DDR4 18ASF2G72PZ-3G2E2 28375F5E",
				"PROC 1 DIMM 5: 16384 DDR4 18ASF2G72PZ-3G2E2 28375F79",
				"PROC 1 DIMM 7: 16384 DDR4 18ASF2G72PZ-3G2E2 2837B3EF",
				"PROC 2 DIMM 1: 16384 DDR4 18ASF2G72PZ-3G2E2 28373B18",
				"PROC 2 DIMM 10: 16384 DDR4 18ASF2G72PZ-3G2E2 283755B8",
				"PROC 2 DIMM 12: 16384 DDR4 18ASF2G72PZ-3G2E2 28374BC2",
				"PROC 2 DIMM 14: 16384 DDR4 18ASF2G72PZ-3G2E2 2837CBDE",
				"PROC 2 DIMM 16: 16384 DDR4 18ASF2G72PZ-3G2E2 2837B3B0",
				"PROC 2 DIMM 3: 16384 DDR4 18ASF2G72PZ-3G2E2 2837CB10",
				"PROC 2 DIMM 5: 16384 DDR4 18ASF2G72PZ-3G2E2 2837CB02",
				"PROC 2 DIMM 7: 16384 DDR4 18ASF2G72PZ-3G2E2 2837A657",
			},
			NICs: []string{
				"1: 94:40:c9:6a:42:da 0 down",
				"2: 94:40:c9:6a:42:db 0 ?",
				"3: b4:7a:f1:12:fb:70 0 ?",
				"4: b4:7a:f1:12:fb:71 0 ?",
			},
			GPUs: []string{
				"PCI-E Slot 1: NVIDIA A40 1334520060094 ",
				"PCI-E Slot 11: NVIDIA A40 1334520060358 ",
				"PCI-E Slot 13: NVIDIA A40 1334520060098 ",
				"PCI-E Slot 2: NVIDIA A40 1334520060099 ",
				"PCI-E Slot 3: NVIDIA A40 1334520060273 ",
				"PCI-E Slot 5: NVIDIA A40 1325120036836 ",
				"PCI-E Slot 7: NVIDIA A40 1325120036457 ",
				"PCI-E Slot 9: NVIDIA A40 1334520060138 ",
			},
			PCI: []string{
				"DC092000: HPE Eth 10/25Gb 2p 621SFP28 Adptr MY50050V5K nic",
				"Embedded Device: Embedded Video Controller  ",
				"PCI-E Slot 18: SS11 200Gb 1P NIC PCIE EJ21490084 nic",
				"PCI-E Slot 20: Marvell FastLinQ 41000 Series - 2P 25GbE SFP28 QL41232HLCU-HC MD2 Adapter - NIC REE2028K55581 nic",
				"PCI-E Slot 21: SS11 200Gb 1P NIC PCIE EJ21490065 nic",
			},
			Firmware: []string{
				"24",
				"System ROM A47 v2.52 (10/29/2021)",
				"iLO 5 2.55 Oct 01 2021",
			},
			Missing: []string{
				"disks: the service shows none, neither under Storage nor in HPE's SmartStorage",
			},
		},
	},
	{
		name: "EX235n", system: "/redfish/v1/Systems/Node1",
		found: `/redfish/v1/Systems/Node1 on key=mac:00:40:a6:84:d5:eb/Node1 fw="" types=3 mode="" override=false cd=false http=false`,
		want: facts{
			System:    "HPE|HPE Cray EX235n|DP20300012|",
			MemoryMiB: 262144, BIOS: "ex235n.bios-1.2.1", TPM: "", Health: "OK", BIOSAttributes: true,
			CPUs: []string{
				"CPU 0: AMD EPYC 7713 64-Core Processor 64/128 ",
			},
			DIMMs: []string{
				"DIMM0: 32768 DDR4 M393A4K40DB3-CWE 15638280",
				"DIMM1: 32768 DDR4 M393A4K40DB3-CWE 15636C1F",
				"DIMM2: 32768 DDR4 M393A4K40DB3-CWE 15636AA5",
				"DIMM3: 32768 DDR4 M393A4K40DB3-CWE 156383C3",
				"DIMM4: 32768 DDR4 M393A4K40DB3-CWE 156385F1",
				"DIMM5: 32768 DDR4 M393A4K40DB3-CWE 15638B53",
				"DIMM6: 32768 DDR4 M393A4K40DB3-CWE 156369B8",
				"DIMM7: 32768 DDR4 M393A4K40DB3-CWE 156374C8",
			},
			NICs: []string{
				"HPCNet0:  0 ?",
				"HPCNet1:  0 ?",
				"HPCNet2:  0 ?",
				"HPCNet3:  0 ?",
				"ManagementEthernet: 00:40:a6:84:d5:eb 0 ?",
			},
			GPUs: []string{
				"GPU0: NVIDIA_A100-SXM4-40GB 1321020042689 ",
				"GPU1: NVIDIA_A100-SXM4-40GB 1321020042465 ",
				"GPU2: NVIDIA_A100-SXM4-40GB 1321020042472 ",
				"GPU3: NVIDIA_A100-SXM4-40GB 1321020042325 ",
			},
			Firmware: []string{
				"30",
				"BMC nc.1.6.19-5-shasta-release.arm.2022-02-25T01:38:09+00:00.d20b426",
			},
			Missing: []string{
				"MAC of HPCNet0",
				"MAC of HPCNet1",
				"MAC of HPCNet2",
				"MAC of HPCNet3",
				"UUID of the system",
				"disks: the service shows none",
				"whether there is a TPM",
			},
		},
	},
	{
		name: "Gigabyte", system: "",
		found: `/redfish/v1/Systems/Self on key=uuid:004018e9-8379-ec11-8000-b42e99bade15 fw="12.84.13" types=4 mode="Legacy" override=true cd=true http=false`,
		want: facts{
			System:    "GIGABYTE|H262-Z63-00|GJG9NF512A000302|e9184000-7983-11ec-8000-b42e99bade15",
			MemoryMiB: 250000, BIOS: "C27", TPM: "", Health: "OK", BIOSAttributes: true,
			CPUs: []string{
				"P0: AMD EPYC 7702 64-Core Processor 64/128 x86_64",
				"P1: AMD EPYC 7702 64-Core Processor 64/128 x86_64",
			},
			DIMMs: []string{
				"DIMM_P0_A0: 15625 DDR4 M393A2K43DB2-CWE 12BBD2FD",
				"DIMM_P0_B0: 15625 DDR4 M393A2K43DB2-CWE 12BBDE36",
				"DIMM_P0_C0: 15625 DDR4 M393A2K43DB2-CWE 12BBD2FE",
				"DIMM_P0_D0: 15625 DDR4 M393A2K43DB2-CWE 12BBD412",
				"DIMM_P0_E0: 15625 DDR4 M393A2K43DB2-CWE 12BBDF4A",
				"DIMM_P0_F0: 15625 DDR4 M393A2K43DB2-CWE 12BBD35C",
				"DIMM_P0_G0: 15625 DDR4 M393A2K43DB2-CWE 12BBDF48",
				"DIMM_P0_H0: 15625 DDR4 M393A2K43DB2-CWE 12BBD8A1",
				"DIMM_P1_I0: 15625 DDR4 M393A2K43DB2-CWE 12BBDFA2",
				"DIMM_P1_J0: 15625 DDR4 M393A2K43DB2-CWE 12BBDE83",
				"DIMM_P1_K0: 15625 DDR4 M393A2K43DB2-CWE 12BBD2B3",
				"DIMM_P1_L0: 15625 DDR4 M393A2K43DB2-CWE 12BBDE34",
				"DIMM_P1_M0: 15625 DDR4 M393A2K43DB2-CWE 12BBDEC2",
				"DIMM_P1_N0: 15625 DDR4 M393A2K43DB2-CWE 12BBD6A8",
				"DIMM_P1_O0: 15625 DDR4 M393A2K43DB2-CWE 12BBD414",
				"DIMM_P1_P0: 15625 DDR4 M393A2K43DB2-CWE 12BBDE86",
			},
			Disks: []string{
				"1: SAMSUNG MZ7LH1T9HMLT-00005|S455NY0M831393|2013667524608|",
			},
			NICs: []string{
				"Lan1: b4:2e:99:ba:de:15 0 ?",
				"Lan2: b4:2e:99:ba:de:16 0 ?",
			},
			PCI: []string{
				"1: MT27800 Family [ConnectX-5]  nic",
			},
			Firmware: []string{
				"3",
				"BIOS C27",
				"BMC 12.84.13",
			},
			Missing: []string{
				"MAC of Lan3: it is shown with that of Lan2",
				"type of disk 1",
				"whether there is a TPM",
			},
		},
	},
	{
		name: "OpenBMC-stock", system: "",
		found: `/redfish/v1/Systems/system off key=manager:8e7365a4-ec9c-4e2d-be63-cf771c45267d/system fw="2.15.0-dev-686-g100c36de90" types=8 mode="UEFI" override=true cd=false http=false`,
		want: facts{
			System:    "|||",
			MemoryMiB: 0, BIOS: "", TPM: "", Health: "OK", BIOSAttributes: false,
			Firmware: []string{
				"1",
				"5d0869c4 2.15.0-dev-686-g100c36de90",
			},
			Missing: []string{
				"BIOS attributes",
				"BIOS version",
				"UUID of the system",
				"disks: the service shows none",
				"memory modules: the service shows none",
				"model of the system",
				"network interfaces: the service shows none with a MAC",
				"processors: the service shows none",
				"serial of the system",
				"size of memory",
				"vendor of the system",
				"whether there is a TPM",
			},
		},
	},
	{
		name: "SupermicroGB300", system: "",
		found: `/redfish/v1/Systems/System_0 on key=uuid:00f01c5f-3d64-f011-8000-7cc25590513a fw="70.01.00.09" types=0 mode="" override=true cd=true http=false`,
		want: facts{
			System:    "Supermicro|GB NVL|S964512X5913271|5f1cf000-643d-11f0-8000-7cc25590513a",
			MemoryMiB: 983040, BIOS: "", TPM: "", Health: "OK", BIOSAttributes: true,
			CPUs: []string{
				"ProcessorModule_0 G1:0.0: Grace A02P 72/72 arm64",
				"ProcessorModule_1 G1:1.0: Grace A02P 72/72 arm64",
			},
			DIMMs: []string{
				"ProcessorModule_0 LP5x_0: 491520 LPDDR5_SDRAM 699-2G548-0301-B00 9223381598431146360",
				"ProcessorModule_1 LP5x_0: 491520 LPDDR5_SDRAM 699-2G548-0301-B00 9223382423003006043",
			},
			Disks: []string{
				"NVMe M.2 Slot 0: ||0|nvme",
			},
			GPUs: []string{
				"ProcessorModule_0 GPU_0: NVIDIA GB300 1653125034241 ffd6582a-64de-b17e-ad24-af5a28aed641",
				"ProcessorModule_0 GPU_1: NVIDIA GB300 1653125034241 fa49ed8c-3b81-945b-9773-835a3ab67e74",
				"ProcessorModule_1 GPU_0: NVIDIA GB300 1653125033721 db9492f2-3d21-53cf-7e00-309c81000466",
				"ProcessorModule_1 GPU_1: NVIDIA GB300 1653125033721 302d915f-9561-cc4b-a561-835f55f37bf6",
			},
			PCI: []string{
				"IO_Board_0_CX8_0: ConnectX-8 800GE 2P NIC MT2528605CGU nic",
				"IO_Board_0_CX8_1: ConnectX-8 800GE 2P NIC MT2528605CGU nic",
				"IO_Board_1_CX8_0: ConnectX-8 800GE 2P NIC MT2529600824 nic",
				"IO_Board_1_CX8_1: ConnectX-8 800GE 2P NIC MT2529600824 nic",
				"Riser_Slot2_BlueField_3_Card: BlueField-3 DPU MT2502602V6R nic",
			},
			Firmware: []string{
				"29",
				"BIOS Firmware 2.1b",
			},
			Missing: []string{
				"BIOS version",
				"MACs of network adapter IO_Board_0_CX8_0",
				"MACs of network adapter IO_Board_0_CX8_1",
				"MACs of network adapter IO_Board_1_CX8_0",
				"MACs of network adapter IO_Board_1_CX8_1",
				"MACs of network adapter Riser_Slot2_BlueField_3_Card",
				"disk in NVMe E1.S Slot 0: the service says that it is absent",
				"disk in NVMe E1.S Slot 1: the service says that it is absent",
				"disk in NVMe E1.S Slot 2: the service says that it is absent",
				"disk in NVMe E1.S Slot 3: the service says that it is absent",
				"disk in NVMe E1.S Slot 4: the service says that it is absent",
				"disk in NVMe E1.S Slot 5: the service says that it is absent",
				"disk in NVMe E1.S Slot 6: the service says that it is absent",
				"disk in NVMe E1.S Slot 7: the service says that it is absent",
				"model of disk NVMe M.2 Slot 0",
				"network interfaces: the service shows none with a MAC",
				"serial of disk NVMe M.2 Slot 0",
				"size of disk NVMe M.2 Slot 0",
				"whether there is a TPM",
			},
		},
	},
	{
		name: "public-rackmount1", system: "",
		found: `/redfish/v1/Systems/437XR1138R2 on key=uuid:38947555-7742-3448-3784-823347823834 fw="1.45.455b66-rev4" types=8 mode="UEFI" override=true cd=true http=false`,
		want: facts{
			System:    "Contoso|3500|437XR1138R2|38947555-7742-3448-3784-823347823834",
			MemoryMiB: 98304, BIOS: "P79 v1.45 (12/06/2017)", TPM: "true 1.2", Health: "OK", BIOSAttributes: true,
			CPUs: []string{
				"CPU 1: Multi-Core Intel(R) Xeon(R) processor 7xxx Series 8/16 x86_64",
			},
			DIMMs: []string{
				"DIMM1: 32768 DDR4  ",
				"DIMM2: 32768 DDR4  ",
				"DIMM3: 32768 DDR4  ",
			},
			Disks: []string{
				"SATA Bay 1: 3000GT8||8000000000000|",
				"SATA Bay 2: 3000GT7||4000000000000|",
			},
			NICs: []string{
				"12446A3B0411: 12:44:6a:3b:04:11 1000 up",
				"12446A3B8890: 12:44:6a:3b:88:90 1000 up",
				"Host Ethernet Interface: aa:bb:cc:dd:ee:fe 100 ?",
			},
			PCI: []string{
				"FPGA1: Stratix 10  fpga",
				"Slot 1: GPU1 2M220100SL graphics",
			},
			Firmware: []string{
				"3",
				"Contoso BIOS Firmware P79 v1.45",
				"Contoso BMC Firmware 1.45.455b66-rev4",
				"Contoso Simple Storage Firmware 2.50",
			},
			Missing: []string{
				"serial of disk SATA Bay 1",
				"serial of disk SATA Bay 2",
				"type of disk SATA Bay 1",
				"type of disk SATA Bay 2",
			},
		},
	},
}
