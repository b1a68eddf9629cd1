//! Links the kernel with the machine's linker script, and makes the entry for seL4's own loader the file's entry: QEMU
//! and firmware enter at the first byte of the image and ignore the file's entry.

use std::env;

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo:rustc-link-arg-bins=-Tkernel.ld");
        // Of hot.ld, which the script includes.
        let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest directory");
        println!("cargo:rustc-link-arg-bins=-L{directory}");
        println!("cargo:rerun-if-changed=hot.ld");
        println!("cargo:rustc-link-arg-bins=--entry=_start_loaded");
    }
}
