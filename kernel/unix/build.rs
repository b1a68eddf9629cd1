//! Links the kernel with the machine's linker script.

use std::env;

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        // The data that a call needs is spread over many pages: more than a small core has entries for. The
        // definition comes before the script, which reads it.
        println!("cargo:rustc-link-arg-bins=--defsym=LEAF=0x200000");
        println!("cargo:rustc-link-arg-bins=-Tkernel.ld");
        // Of hot.ld, which the script includes.
        let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets the manifest directory");
        println!("cargo:rustc-link-arg-bins=-L{directory}");
        println!("cargo:rerun-if-changed=hot.ld");
    }
}
