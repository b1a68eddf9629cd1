//! The whole crate on the fake machine: one test, because a machine is started once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hal_api::{BootInformation, Machine as _};
use hal_host::Simulation;
use platform::{Machine, RegisterError, println};

static BOOT: BootInformation = BootInformation {
    device_tree: include_bytes!("../fixtures/virt-plic.dtb"),
    device_tree_address: 0x8700_0000,
    boot_hart_id: 2,
    image: (0x8020_0000, 0x8040_0000),
};

#[test]
fn the_platform_on_the_fake_machine() {
    const PLIC: u64 = 0xc00_0000;
    const RTC: u64 = 0x10_1000;
    const UART: u64 = 0x1000_0000;
    const LINE_STATUS: usize = 5;
    const CLAIM: usize = 0x20_5004;

    let simulation = Simulation::new();
    let _hart = simulation.attach(0);
    println!("before the start {}", 1);
    assert_eq!(simulation.output(), "before the start 1\n");

    simulation.add_registers(PLIC, 0x60_0000);
    simulation.add_registers(UART, 0x100);
    let uart = hal_host::Window::new(UART, 0x100).unwrap();
    let plic = hal_host::Window::new(PLIC, 0x60_0000).unwrap();
    // The transmitter is always ready.
    uart.write8(LINE_STATUS, 1 << 5);
    let platform = platform::start(&BOOT).unwrap();
    assert_eq!(platform.hart_ids[0], 2);
    assert_eq!(platform.ticks(1), 1);
    assert_eq!(platform.ticks(1_000_000_000), platform.timebase_frequency);
    assert_eq!(platform.nanoseconds(platform.ticks(1_500)), 1_500);
    assert_eq!(platform.ticks(u64::MAX), 184_467_440_737_095_517);

    // A clock whose registers are not mapped is none; then there is one.
    assert_eq!(platform.real_time_clock, Some((RTC, 0x1000)));
    assert_eq!(platform.real_time_ns(), None);
    simulation.add_registers(RTC, 0x1000);
    let rtc = hal_host::Window::new(RTC, 0x1000).unwrap();
    rtc.write32(0, 0x89ab_cdef);
    rtc.write32(4, 0x1234_5678);
    assert_eq!(platform.real_time_ns(), Some(0x1234_5678_89ab_cdef));
    rtc.write32(4, u32::MAX);
    assert_eq!(platform.real_time_ns(), None);

    println!("x");
    assert_eq!(uart.read8(0), b'\n');

    // The serial line has source 10 and is enabled for hart 2's supervisor, context 5.
    assert_eq!(plic.read32(10 * 4), 1);
    assert_eq!(plic.read32(0x2000 + 5 * 0x80), 1 << 10);
    let interrupt = platform.serial.unwrap().device.interrupt.unwrap();
    assert_eq!(platform::register_interrupt(interrupt, |_| true, 0), Err(RegisterError::Taken));

    // The listener is called when the device reports a byte.
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    platform::set_console_listener(|| _ = TOLD.fetch_add(1, Ordering::Relaxed));
    let mut buffer = [0; 8];
    assert_eq!(platform::console_try_read(&mut buffer), 0);
    assert_eq!(platform::poll_interrupts(), platform::Pending::default());
    uart.write8(LINE_STATUS, 1 << 5 | 1);
    uart.write8(0, b'k');
    plic.write32(CLAIM, 10);
    simulation.set_external(0, true);
    assert_eq!(TOLD.load(Ordering::Relaxed), 0);
    assert_eq!(platform::poll_interrupts(), platform::Pending::default());
    assert_ne!(TOLD.load(Ordering::Relaxed), 0);
    assert!(platform::console_try_read(&mut buffer) > 0);
    assert_eq!(buffer[0], b'k');
    simulation.set_external(0, false);

    // A source whose level stays is switched off after a while if no device has asked.
    let stuck = platform::Interrupt { source: 11, ..interrupt };
    static HAS_ASKED: AtomicBool = AtomicBool::new(true);
    platform::register_interrupt(stuck, |_| HAS_ASKED.load(Ordering::Relaxed), 0).unwrap();
    plic.write32(CLAIM, 11);
    simulation.set_external(0, true);
    for (has_asked, priority) in [(true, 1), (false, 0)] {
        HAS_ASKED.store(has_asked, Ordering::Relaxed);
        assert_eq!(plic.read32(11 * 4), 1);
        // At each visit as many as are served at once.
        (0..20).for_each(|_| assert_eq!(platform::poll_interrupts(), platform::Pending::default()));
        assert_eq!(plic.read32(11 * 4), priority);
    }
    platform::console_flush();
    simulation.set_external(0, false);

    // A stalled line: a program's output has a quarter of the ring's 4,096 bytes, and the listener is called when there
    // is more room than an eighth of them is in use, and when nothing waits any more.
    uart.write8(LINE_STATUS, 0);
    assert!(platform::console_is_silent());
    assert_eq!(platform::console_room(5000), 1024);
    platform::console_write(&[b'-'; 900]);
    assert_eq!((platform::console_room(124), platform::console_room(125)), (124, 124));
    assert!(!platform::console_is_silent());
    let told = TOLD.load(Ordering::Relaxed);
    platform::serve_console();
    assert_eq!((platform::console_waiting(), TOLD.load(Ordering::Relaxed)), (900, told));
    uart.write8(LINE_STATUS, 1 << 5);
    for at in [512, 0] {
        let told = TOLD.load(Ordering::Relaxed);
        while platform::console_waiting() > at {
            assert_eq!(TOLD.load(Ordering::Relaxed), told);
            platform::serve_console();
        }
        assert_eq!(TOLD.load(Ordering::Relaxed), told + 1);
        assert_eq!(platform::console_is_silent(), at == 0);
    }
    platform::serve_console();
    assert_eq!(TOLD.load(Ordering::Relaxed), told + 2, "nothing was awaited");
    // Output that no interrupt takes is sent by a writer that finds the ring full.
    platform::console_write(&[b'-'; 5000]);
    assert_eq!(platform::console_waiting(), 5000 - 4096);
    platform::console_flush();
    assert!(platform::console_is_silent());

    // Timer and interprocessor interrupts are the kernel's, and come once.
    Machine::set_timer(5);
    simulation.advance(5);
    Machine::send_ipi(0);
    assert_eq!(platform::poll_interrupts(), platform::Pending { timer: true, ipi: true, guest: false });
    assert_eq!(platform::poll_interrupts(), platform::Pending::default());

    assert_eq!(platform::start_harts(3), 3);
    assert_eq!(simulation.started(), [1, 2]);

    // A hart that does not arrive is awaited, but not for ever.
    simulation.lose_hart(3);
    let before = Machine::now();
    assert_eq!(platform::start_harts(4), 3);
    assert_eq!(simulation.started(), [1, 2, 1, 2]);
    assert!(Machine::now() - before >= platform.timebase_frequency);
    assert_eq!(simulation.deadline(0), None);
    platform::remove_interrupt(10);
    assert_eq!(plic.read32(10 * 4), 0);
    assert_eq!(plic.read32(0x2000 + 5 * 0x80), 0);
}
