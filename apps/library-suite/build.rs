//! Links the program with the script of root tasks, and passes it the path of its archive of programs.

fn main() {
    println!("cargo::rerun-if-changed=../../user/sel4/root-task.ld");
    println!("cargo::rerun-if-env-changed=COPS_CONTAINED_PROGRAMS");
    let archive = std::env::var("COPS_CONTAINED_PROGRAMS").unwrap_or_else(|_| {
        // xtask makes the archive. Other builds are only checked, never run: an empty file is enough for them.
        let empty = std::env::var("OUT_DIR").expect("cargo says where output goes") + "/empty.cpio";
        std::fs::write(&empty, []).expect("the directory for output can be written");
        empty
    });
    println!("cargo::rerun-if-changed={archive}");
    println!("cargo::rustc-env=COPS_CONTAINED_PROGRAMS={archive}");
    if std::env::var("TARGET").is_ok_and(|target| target == "riscv64gc-unknown-none-elf") {
        let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the manifest is");
        println!("cargo::rustc-link-arg-bins=-T{here}/../../user/sel4/root-task.ld");
    }
}
