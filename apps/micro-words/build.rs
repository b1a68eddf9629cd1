//! Links the program as root tasks are linked.

fn main() {
    println!("cargo::rerun-if-changed=../../user/sel4/root-task.ld");
    if std::env::var("TARGET").is_ok_and(|target| target == "riscv64gc-unknown-none-elf") {
        let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the manifest is");
        println!("cargo::rustc-link-arg-bins=-T{here}/../../user/sel4/root-task.ld");
    }
}
