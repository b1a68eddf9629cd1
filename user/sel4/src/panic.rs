//! A panic says where, and ends the machine: a root task has nobody above it who would go on.

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    match info.location() {
        Some(place) => crate::println!(
            "root task panicked at {}:{}:{}: {}",
            place.file(),
            place.line(),
            place.column(),
            info.message()
        ),
        None => crate::println!("root task panicked: {}", info.message()),
    }
    crate::start::end()
}
