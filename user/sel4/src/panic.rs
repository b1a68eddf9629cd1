//! The panic handler: prints the place, and ends the program. A root task has no parent, so its panic ends the machine.

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
