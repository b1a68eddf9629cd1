//! Compares the tables with the numbers that programs built for seL4 15.0.0 have compiled in.
//!
//! The lists here were read from the output of seL4's build system for its interface files, for riscv64 without MCS,
//! once for one core and once for several. They repeat the tables on purpose: a table that changes by mistake must
//! differ from the lists.

use abi_sel4::*;

#[test]
fn system_calls() {
    let expected = [
        (-1, "Call"),
        (-2, "ReplyRecv"),
        (-3, "Send"),
        (-4, "NBSend"),
        (-5, "Recv"),
        (-6, "Reply"),
        (-7, "Yield"),
        (-8, "NBRecv"),
        // Not seL4's.
        (-64, "WakeSyscallHandler"),
        (-65, "ReturnFromUserInterrupt"),
        (-66, "SignalRecv"),
    ];
    let table: Vec<_> = SystemCall::ALL.iter().map(|call| (call.number(), call.name())).collect();
    assert_eq!(table, expected);
    for number in -300..300 {
        let known = expected.iter().any(|&(expected, _)| expected == number);
        assert_eq!(SystemCall::from_number(number).map(SystemCall::number), known.then_some(number));
    }
}

#[test]
fn calls_for_debugging_and_measuring() {
    use debug_call::{Benchmarks, Build, Debugging, Release};
    let names = |release, cores, debugging, benchmarks| {
        let build = Build { release, cores, debugging, benchmarks };
        let names: Vec<_> = (9..40).map_while(|number| DebugCall::from_number(-number, build)).collect();
        for (place, call) in names.iter().enumerate() {
            assert_eq!(call.number(build), Some(-9 - place as isize));
        }
        for number in [isize::MIN, -40, -8, -1, 0, 9, isize::MAX] {
            assert_eq!(DebugCall::from_number(number, build), None);
        }
        names.iter().map(|call| call.name()).collect::<Vec<_>>()
    };
    let printing = ["DebugPutChar", "DebugDumpScheduler"];
    let debugging = ["DebugHalt", "DebugCapIdentify", "DebugSnapshot", "DebugNameThread"];
    let measuring = [
        "BenchmarkFlushCaches",
        "BenchmarkResetLog",
        "BenchmarkFinalizeLog",
        "BenchmarkSetLogBuffer",
        "BenchmarkNullSyscall",
    ];
    let utilisation = ["BenchmarkGetThreadUtilisation", "BenchmarkResetThreadUtilisation"];
    let all_threads = ["BenchmarkDumpAllThreadsUtilisation", "BenchmarkResetAllThreadsUtilisation"];
    let [one, several] = [Numbering::Uniprocessor, Numbering::Multiprocessor];
    let common: Vec<_> = printing.into_iter().chain(debugging).collect();
    for (release, cores, own) in [
        (Release::Fifteen, one, &["DebugSendIPI"][..]),
        (Release::Fifteen, several, &["DebugSendIPI"]),
        (Release::Sixteen, one, &[]),
        (Release::Sixteen, several, &["DebugSendIPI", "DebugGetThreadAffinity"]),
    ] {
        let debugging = [&common[..], own].concat();
        assert_eq!(names(release, cores, Debugging::On, Benchmarks::Off), debugging);
        for benchmarks in [Benchmarks::Calls, Benchmarks::Entries] {
            assert_eq!(names(release, cores, Debugging::On, benchmarks), [&debugging[..], &measuring].concat());
        }
        assert_eq!(
            names(release, cores, Debugging::On, Benchmarks::Utilisation),
            [&debugging[..], &measuring, &utilisation, &all_threads].concat()
        );
        assert!(names(release, cores, Debugging::Off, Benchmarks::Off).is_empty());
        assert_eq!(names(release, cores, Debugging::Off, Benchmarks::Calls), measuring);
        assert_eq!(
            names(release, cores, Debugging::Off, Benchmarks::Utilisation),
            [&measuring[..], &utilisation].concat()
        );
    }
    for (place, call) in DebugCall::ALL.iter().enumerate().take(common.len()) {
        assert_eq!(call.fixed_number(), -9 - place as isize);
    }
}

#[test]
fn invocation_labels() {
    // Label for one core, label for several, name.
    let expected = [
        (Some(1), 1, "Untyped_Retype"),
        (Some(2), 2, "TCB_ReadRegisters"),
        (Some(3), 3, "TCB_WriteRegisters"),
        (Some(4), 4, "TCB_CopyRegisters"),
        (Some(5), 5, "TCB_Configure"),
        (Some(6), 6, "TCB_SetPriority"),
        (Some(7), 7, "TCB_SetMCPriority"),
        (Some(8), 8, "TCB_SetSchedParams"),
        (Some(9), 9, "TCB_SetIPCBuffer"),
        (Some(10), 10, "TCB_SetSpace"),
        (Some(11), 11, "TCB_Suspend"),
        (Some(12), 12, "TCB_Resume"),
        (Some(13), 13, "TCB_BindNotification"),
        (Some(14), 14, "TCB_UnbindNotification"),
        (None, 15, "TCB_SetAffinity"),
        (Some(15), 16, "TCB_SetTLSBase"),
        (Some(16), 17, "TCB_SetFlags"),
        (Some(17), 18, "CNode_Revoke"),
        (Some(18), 19, "CNode_Delete"),
        (Some(19), 20, "CNode_CancelBadgedSends"),
        (Some(20), 21, "CNode_Copy"),
        (Some(21), 22, "CNode_Mint"),
        (Some(22), 23, "CNode_Move"),
        (Some(23), 24, "CNode_Mutate"),
        (Some(24), 25, "CNode_Rotate"),
        (Some(25), 26, "CNode_SaveCaller"),
        (Some(26), 27, "IRQControl_Get"),
        (Some(27), 28, "IRQHandler_Ack"),
        (Some(28), 29, "IRQHandler_SetNotification"),
        (Some(29), 30, "IRQHandler_Clear"),
        (Some(30), 31, "DomainSet_Set"),
        (Some(31), 32, "DomainSet_ScheduleConfigure"),
        (Some(32), 33, "DomainSet_ScheduleSetStart"),
        (Some(33), 34, "RISCV_PageTable_Map"),
        (Some(34), 35, "RISCV_PageTable_Unmap"),
        (Some(35), 36, "RISCV_Page_Map"),
        (Some(36), 37, "RISCV_Page_Unmap"),
        (Some(37), 38, "RISCV_Page_GetAddress"),
        (Some(38), 39, "RISCV_ASIDControl_MakePool"),
        (Some(39), 40, "RISCV_ASIDPool_Assign"),
        (Some(40), 41, "IRQControl_GetTrigger"),
    ];
    let additions = [
        (Some(41), 42, "TCB_RegisterAsyncSyscall"),
        (Some(42), 43, "TCB_RegisterUserInterrupts"),
        (Some(43), 44, "RISCV_PageTable_MapSender"),
    ];
    let expected = [&expected[..], &additions].concat();
    let table: Vec<_> = Invocation::ALL
        .iter()
        .map(|call| {
            let several = call.label(Numbering::Multiprocessor).expect("all labels exist for several cores");
            (call.label(Numbering::Uniprocessor), several, call.name())
        })
        .collect();
    assert_eq!(table, expected);
    let is_last = |label| Invocation::from_label(label, Numbering::Multiprocessor) == Invocation::ALL.last().copied();
    assert!(is_last(Invocation::first_free_label(Numbering::Uniprocessor)));
    assert!(is_last(Invocation::first_free_label(Numbering::Multiprocessor) - 1));
    let found = Invocation::ALL.iter().filter(|call| call.is_addition()).map(|call| call.name());
    assert!(found.eq(additions.map(|(.., name)| name)));
}

#[test]
fn labels_lead_back() {
    for numbering in [Numbering::Uniprocessor, Numbering::Multiprocessor] {
        let mut found = 0;
        for label in (0..300).chain([u64::MAX - 1, u64::MAX]) {
            if let Some(invocation) = Invocation::from_label(label, numbering) {
                assert_eq!(invocation.label(numbering), Some(label));
                found += 1;
            }
        }
        let all = Invocation::ALL.iter().filter(|invocation| invocation.label(numbering).is_some()).count();
        assert_eq!(found, all);
    }
}

#[test]
fn messages_fit_their_limits() {
    for &invocation in Invocation::ALL {
        assert!(invocation.capabilities().len() <= message::MAXIMUM_CAPABILITIES, "{}", invocation.name());
        let registers = invocation.words().iter().filter(|(_, kind)| *kind == invocation::WordKind::Registers).count();
        let words = invocation.words().len() + registers * (registers::COUNT - 1);
        assert!(words <= message::MAXIMUM_LENGTH, "{}", invocation.name());
    }
    for &fault in Fault::ALL {
        assert!(fault.words().len() <= message::MAXIMUM_LENGTH, "{}", fault.name());
        assert!(fault.written_back() <= fault.words().len(), "{}", fault.name());
    }
}

#[test]
fn errors() {
    let expected = [
        (1, "InvalidArgument"),
        (2, "InvalidCapability"),
        (3, "IllegalOperation"),
        (4, "RangeError"),
        (5, "AlignmentError"),
        (6, "FailedLookup"),
        (7, "TruncatedMessage"),
        (8, "DeleteFirst"),
        (9, "RevokeFirst"),
        (10, "NotEnoughMemory"),
    ];
    let table: Vec<_> = Error::ALL.iter().map(|error| (error.number(), error.name())).collect();
    assert_eq!(table, expected);
    let expected = [(1, "InvalidRoot"), (2, "MissingCapability"), (3, "DepthMismatch"), (4, "GuardMismatch")];
    let table: Vec<_> = LookupFailureKind::ALL.iter().map(|failure| (failure.number(), failure.name())).collect();
    assert_eq!(table, expected);
    assert_eq!(Error::from_number(0), None);
    assert_eq!(Error::from_number(11), None);
}

#[test]
fn objects() {
    let sizes: Vec<_> =
        ObjectType::ALL.iter().map(|object| (object.number(), object.name(), object.size_bits(8))).collect();
    let expected = [
        (0, "Untyped", 8),
        (1, "Tcb", 11),
        (2, "Endpoint", 4),
        (3, "Notification", 5),
        (4, "CapTable", 13),
        (5, "GigaPage", 30),
        (6, "Page", 12),
        (7, "MegaPage", 21),
        (8, "PageTable", 12),
    ];
    assert_eq!(sizes, expected);
    let tags: Vec<_> = CapabilityTag::ALL.iter().map(|tag| tag.number()).collect();
    assert_eq!(tags, [0, 1, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 16, 18, 20]);
}

#[test]
fn faults() {
    let table: Vec<_> =
        Fault::ALL.iter().map(|fault| (fault.label(), fault.words().len(), fault.written_back())).collect();
    assert_eq!(table, [(0, 0, 0), (1, 7, 0), (2, 11, 10), (3, 4, 2), (5, 4, 0)]);
    assert_eq!(Fault::from_label(4), None);
    assert_eq!(Fault::from_label(6), None);
    // The details of a failed search follow ip, address, phase and failure.
    let longest = LookupFailureKind::GuardMismatch.details().len();
    assert_eq!(Fault::CapFault.words().len(), 4 + longest);
}

#[test]
fn errors_come_back_from_their_words() {
    let lookups = [
        (FailedLookup::InvalidRoot, [1, 0, 0, 0], 1),
        (FailedLookup::MissingCapability { bits_left: 7 }, [2, 7, 0, 0], 2),
        (FailedLookup::DepthMismatch { bits_left: 7, bits_found: 9 }, [3, 7, 9, 0], 3),
        (FailedLookup::GuardMismatch { bits_left: 7, guard_found: 8, bits_found: 9 }, [4, 7, 8, 9], 4),
    ];
    for (lookup, words, count) in lookups {
        assert_eq!(lookup.to_words(), (words, count));
        assert_eq!(FailedLookup::from_words(words), Some(lookup));
        let (fault, length) = fault::CapFault::new(11, 12, fault::Phase::Receive, lookup);
        assert_eq!(fault.to_words()[..length], [&[11, 12, 1], &words[..count]].concat());
        assert_eq!((fault.lookup(), fault.phase()), (Some(lookup), fault::Phase::Receive));
    }
    assert_eq!(FailedLookup::from_words([5, 0, 0, 0]), None);
    let failure = FailedLookup::DepthMismatch { bits_left: 7, bits_found: 9 };
    let errors = [
        (InvocationError::InvalidArgument(3), [3, 0, 0, 0, 0], 1),
        (InvocationError::InvalidCapability(2), [2, 0, 0, 0, 0], 1),
        (InvocationError::IllegalOperation, [0; 5], 0),
        (InvocationError::RangeError { minimum: 1, maximum: 64 }, [1, 64, 0, 0, 0], 2),
        (InvocationError::AlignmentError, [0; 5], 0),
        (InvocationError::FailedLookup { operand: Operand::Source, failure }, [1, 3, 7, 9, 0], 4),
        (InvocationError::TruncatedMessage, [0; 5], 0),
        (InvocationError::DeleteFirst, [0; 5], 0),
        (InvocationError::RevokeFirst, [0; 5], 0),
        (InvocationError::NotEnoughMemory { available: 4096 }, [4096, 0, 0, 0, 0], 1),
    ];
    assert!(errors.iter().map(|(error, ..)| error.kind()).eq(Error::ALL.iter().copied()));
    for (error, words, count) in errors {
        assert_eq!(error.to_words(), (words, count));
        assert_eq!(InvocationError::from_words(error.kind(), words), Some(error));
    }
    assert_eq!(InvocationError::from_words(Error::FailedLookup, [0, 9, 0, 0, 0]), None);
}

#[test]
fn registers_in_faults() {
    assert_eq!(Fault::UnknownSyscall.registers(), [2, 1, 10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(Fault::UserException.registers(), [2]);
    for &fault in Fault::ALL {
        let written_back = fault.written_back();
        assert_eq!(fault.registers().len(), written_back.saturating_sub(1), "{}", fault.name());
    }
}

#[test]
fn words_with_fields() {
    let info = MessageInfo::new(0xf_ffff_ffff_ffff, 3, 120);
    assert_eq!(info.0, 0xffff_ffff_ffff_f000 | 3 << 7 | 120);
    assert_eq!((info.label(), info.capabilities(), info.length(), info.unwrapped()), (0xf_ffff_ffff_ffff, 3, 120, 0));
    let info = MessageInfo::new(5, 1, 2).with_unwrapped(4);
    assert_eq!(info.0, 5 << 12 | 4 << 9 | 1 << 7 | 2);
    assert_eq!((info.label(), info.capabilities(), info.length(), info.unwrapped()), (5, 1, 2, 4));

    assert_eq!(MessageInfo::new(7, 0, 4).length_in_registers(), Some(4));
    assert_eq!(MessageInfo::new(7, 0, 5).length_in_registers(), None);
    assert_eq!(MessageInfo::new(7, 1, 0).length_in_registers(), None);
    assert_eq!(MessageInfo::new(7, 2, 3).with_unwrapped(1).without_capabilities(), MessageInfo::new(7, 0, 3));

    assert_eq!(Rights::ALL.0, 0b1111);
    assert_eq!((Rights::GRANT_REPLY.0, Rights::GRANT.0, Rights::READ.0, Rights::WRITE.0), (8, 4, 2, 1));
    assert_eq!(Rights::from_word(u64::MAX), Rights::ALL);
    assert_eq!(Rights::READ_WRITE.union(Rights::GRANT).intersection(Rights(6)), Rights(6));
    assert!(Rights::READ_WRITE.intersects(Rights(6)) && !Rights::READ_WRITE.intersects(Rights(12)));
    assert!(Rights::ALL.contains(Rights::GRANT) && !Rights::READ_WRITE.contains(Rights::GRANT));

    let data = CNodeData::new(0x5, 51);
    assert_eq!(data.0, 5 << 6 | 51);
    assert_eq!((data.guard(), data.guard_size()), (5, 51));
}

#[test]
fn registers() {
    let order = "pc ra sp gp s0 s1 s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 a0 a1 a2 a3 a4 a5 a6 a7 t0 t1 t2 t3 t4 t5 t6 tp";
    assert_eq!(registers::NAMES.join(" "), order);
    let mut numbers = registers::NUMBERS;
    assert_eq!([1, 2, 16, 31].map(|index| numbers[index]), [1, 2, 10, 4]);
    numbers.sort();
    assert_eq!(numbers, core::array::from_fn(|index| index));
    let words = core::array::from_fn(|index| index as u64);
    let registers = Registers::from_words(words);
    assert_eq!((registers.pc, registers.gp, registers.a0, registers.tp), (0, 3, 16, 31));
    assert_eq!(registers.to_words(), words);
}

#[test]
fn boot_slots() {
    assert_eq!(boot::slot::NAMES.len(), 16);
    assert_eq!(boot::slot::NAMES[boot::slot::DOMAIN], "Domain");
    assert_eq!(boot::slot::NAMES[boot::slot::ASID_POOL], "InitThreadASIDPool");
    assert_eq!(boot::slot::NAMES[boot::slot::SMC], "SMC");
}

#[test]
fn records_of_the_log_have_the_layout_that_programs_have_compiled_in() {
    use abi_sel4::debug_call::{EntryPath, KernelEntry, LogEntry};
    let call = KernelEntry::system_call(1, 0x1f, 0x7ffff);
    assert_eq!(call.0, 5 | 1 << 3 | 0x1f << 7 | 0x7ffff << 13);
    assert_eq!(call.on_fastpath().0 ^ call.0, 1 << 12);
    // Numbers that are too large do not spill into other fields.
    assert_eq!(KernelEntry::system_call(0x11, 0x21, 1 << 19).0, 5 | 1 << 3 | 1 << 7);
    assert_eq!(KernelEntry::other(EntryPath::VmFault, 9, 13).0, 4 | 1 << 3 | 13 << 6);
    let record = LogEntry { start: 0x1122_3344_5566_7788, duration: 0x99aa_bbcc, entry: call };
    assert_eq!(record.words(), [0x1122_3344_5566_7788, u64::from(call.0) << 32 | 0x99aa_bbcc]);
    assert_eq!(LogEntry::from_words(record.words()), record);
}
