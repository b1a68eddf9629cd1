//! Links the kernel with the machine's linker script.

use std::env;

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo:rustc-link-arg-bins=-Tkernel.ld");
        // Of hot.ld, which the script includes.
        let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest directory");
        println!("cargo:rustc-link-arg-bins=-L{directory}");
        println!("cargo:rerun-if-changed=hot.ld");
    }
}
