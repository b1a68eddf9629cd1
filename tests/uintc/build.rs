//! Links the program with its own linker script: it runs without paging, where the firmware places it.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=program.ld");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest directory");
        println!("cargo:rustc-link-arg-bins=-T{directory}/program.ld");
    }
}
