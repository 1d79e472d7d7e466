//! The matrix tiles of AMX: 16 rows by 16 outputs of 8-bit products in one instruction.
//!
//! The tile registers are not vectors and have no intrinsics in stable Rust, so this is the one place with inline
//! assembly. A thread says once how large its tiles are ([`Session`]); then [`Session::dot`] multiplies codes from memory
//! into sums in memory.
//!
//! The kernel of the operating system must allow a process to use the tiles: [`available`] asks for that.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Rows and outputs of a tile of sums.
pub(crate) const SIDE: usize = 16;

/// Whether the processor has 8-bit tiles and this process may use them.
pub(super) fn available() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        // Leaf 7 says "AMX-TILE" and "AMX-INT8" in bits 24 and 25; leaf 1 "XSAVE is in use" in bit 27.
        let tiles = __cpuid_count(7, 0).edx >> 24 & 3 == 3;
        let saved = __cpuid(1).ecx >> 27 & 1 == 1;
        // SAFETY: `xgetbv` exists where the system has turned XSAVE on, which has just been asked.
        tiles && saved && unsafe { tiles_are_saved() } && request()
    })
}

/// Whether the system saves the tile state (bits 17 and 18) when it switches threads.
#[target_feature(enable = "xsave")]
unsafe fn tiles_are_saved() -> bool {
    // SAFETY: register 0 always exists.
    (unsafe { _xgetbv(0) }) >> 17 & 3 == 3
}

/// Asks Linux for the use of tile data by this process.
#[cfg(target_os = "linux")]
fn request() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: the call changes only what state the system saves for this process; it writes no memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request() -> bool {
    false
}

/// How large each tile is, as the processor reads it.
#[repr(C, align(64))]
struct Sizes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// This thread's use of the tiles, for groups of `GROUP` values: 0 holds sums, 1 rows of activation codes, 2 codes of
/// weights, four values deep.
pub(crate) struct Session<const GROUP: usize>(());

impl<const GROUP: usize> Session<GROUP> {
    /// Sets the sizes.
    ///
    /// # Panics
    /// When there are no tiles to use.
    pub(crate) fn new() -> Self {
        assert!(available(), "this machine has no tiles that may be used");
        let mut sizes =
            Sizes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let all = [(16, 64), (16, GROUP as u16), (GROUP as u8 / 4, 64)];
        for (tile, size) in all.into_iter().enumerate() {
            (sizes.rows[tile], sizes.row_bytes[tile]) = size;
        }
        // SAFETY: the tiles exist; the sizes are within those of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &sizes, options(nostack, readonly)) };
        Session(())
    }

    /// Writes the sums of products of signed codes: `[16, GROUP]` at `rows`, by `[GROUP / 4, 16, 4]` at `codes`, to `[16, 16]` at
    /// `sums`. Strides are in bytes.
    ///
    /// # Safety
    /// All three are readable, `sums` writable.
    #[inline(always)]
    pub(crate) unsafe fn dot(
        &self,
        rows: *const i8,
        row_stride: usize,
        codes: *const u8,
        code_stride: usize,
        sums: *mut i32,
    ) {
        // The tiles are no registers that the compiler would use itself.
        // SAFETY: the session has set the sizes of what is read and written, which the caller vouches for.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm1, [{rows} + {row_stride}]",
                "tileloadd tmm2, [{codes} + {code_stride}]",
                "tdpbssd tmm0, tmm1, tmm2",
                "tilestored [{sums} + {line}], tmm0",
                rows = in(reg) rows,
                row_stride = in(reg) row_stride,
                codes = in(reg) codes,
                code_stride = in(reg) code_stride,
                sums = in(reg) sums,
                line = in(reg) 64usize,
                options(nostack),
            );
        }
    }
}

impl<const GROUP: usize> Drop for Session<GROUP> {
    fn drop(&mut self) {
        // SAFETY: the session has set the tiles up; nothing is in them any more.
        unsafe { asm!("tilerelease", options(nostack)) };
    }
}
