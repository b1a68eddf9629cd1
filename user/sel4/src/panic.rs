//! A panic says where, and ends the program: that of a root task ends the machine, as it has nobody above it who would
//! go on.

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let name = crate::boot::own_name().unwrap_or("root task");
    match info.location() {
        Some(place) => crate::println!(
            "{name} panicked at {}:{}:{}: {}",
            place.file(),
            place.line(),
            place.column(),
            info.message()
        ),
        None => crate::println!("{name} panicked: {}", info.message()),
    }
    crate::start::exit(crate::process::PANICKED)
}
