//! What this machine can do at most: bytes that are read once, and products of numbers that are in registers already.
//!
//! A kernel's speed says little by itself. Beside these limits it says what is left: decoding reads each weight once,
//! so that its limit is [`Limits::read_bytes`] over the bytes of the weights; prefilling multiplies each weight by many
//! rows, and is limited by the products of its kind. Limits are measured, best of several times, with the threads and
//! the instruction set that kernels would use.
//!
//! Products are measured as kernels make them: a tile of sums, each row of it by one operand that is read from the
//! cache next to the core, so that no compiler can take them out of the loop.

use crate::arch::{Isa, Kernel, Simd};
use crate::cpu::CpuError;
use crate::pool::{Pool, Share};
use std::hint::black_box;
use std::time::Instant;

/// How much is done to measure.
#[derive(Clone, Copy)]
struct Effort {
    /// Bytes that are read.
    bytes: usize,
    /// Tiles of products.
    steps: usize,
    /// Times, of which the best counts.
    times: usize,
}

/// More bytes than caches hold, and products for some milliseconds.
const FULL: Effort = Effort { bytes: 256 << 20, steps: 200_000, times: 5 };
/// Operands that a tile's rows take in turn, in vectors: a few KiB.
const OPERANDS: usize = 32;

/// The most that this machine does in a second.
///
/// ```no_run
/// # fn main() -> Result<(), tranship_cpu::CpuError> {
/// let limits = tranship_cpu::Limits::measure(2)?;
/// println!("{:.1} GB/s, {:.0} GFLOP/s", limits.read_bytes / 1e9, limits.f32_ops / 1e9);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The instruction set.
    pub isa: Isa,
    /// Threads that worked at once.
    pub threads: usize,
    /// Bytes that all threads together read from memory in a second.
    pub read_bytes: f64,
    /// Operations on F32 in a second: two for each product that is added.
    pub f32_ops: f64,
    /// The same of 8-bit integers that are added to 32 bits. Where there are matrix tiles, it is their rate with
    /// operands and sums in the cache, which is how they are used.
    pub byte_ops: f64,
    /// The same of BF16 numbers that are added to F32, where the machine has such products.
    pub bf16_ops: Option<f64>,
}

impl Limits {
    /// Measures them with the best instruction set on `threads` threads. It takes about a second and 256 MiB.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn measure(threads: usize) -> Result<Limits, CpuError> {
        Limits::measure_with(threads, FULL)
    }

    fn measure_with(threads: usize, effort: Effort) -> Result<Limits, CpuError> {
        let pool = Pool::new(threads).map_err(|source| CpuError::Threads { threads, source })?;
        let (isa, steps) = (Isa::detect(), effort.steps);
        let rate = |of_each: &(dyn Fn() -> f64 + Sync)| threads as f64 * rate(&pool, effort.times, of_each);
        let bytes = rate(&|| isa.dispatch_bytes(Bytes(steps)));
        #[cfg(target_arch = "x86_64")]
        let bytes = if isa == Isa::Amx { rate(&|| tiles(steps)).max(bytes) } else { bytes };
        Ok(Limits {
            isa,
            threads: pool.threads(),
            read_bytes: read(isa, &pool, effort),
            f32_ops: rate(&|| isa.dispatch(Floats(steps))),
            byte_ops: bytes,
            bf16_ops: isa
                .multiplies_bf16()
                .then(|| rate(&|| isa.dispatch_bf16(Brains(steps)).unwrap_or(0.0))),
        })
    }
}

/// The best of several times, in seconds.
fn least(times: usize, once: impl Fn()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        once();
        start.elapsed().as_secs_f64()
    };
    (0..times).map(time).fold(f64::INFINITY, f64::min)
}

/// Bytes in a second, by the fastest of several ways to go through memory.
fn read(isa: Isa, pool: &Pool, effort: Effort) -> f64 {
    let memory = vec![1i32; effort.bytes / 4];
    let way = |streams, ahead| {
        let part = |share: Share<'_>| {
            let of_share = &memory[share.range(memory.len(), 4096)];
            black_box(isa.dispatch(Read { memory: of_share, streams, ahead }));
        };
        least(effort.times, || pool.run(part))
    };
    let ways = [(1, 0), (1, 2048), (4, 0), (4, 1024)].map(|(streams, ahead)| way(streams, ahead));
    effort.bytes as f64 / ways.into_iter().fold(f64::INFINITY, f64::min)
}

/// Reads memory once, in some equal parts at once, each with its next bytes asked for before.
struct Read<'a> {
    memory: &'a [i32],
    streams: usize,
    /// Bytes; 0 leaves the machine's own reading ahead alone.
    ahead: usize,
}

impl Kernel for Read<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let part = self.memory.len() / self.streams;
        let unit = 4 * S::LANES;
        let zero = s.i_splat(0);
        let mut sums = [zero; 4];
        for at in (0..part / unit * unit).step_by(unit) {
            for stream in 0..self.streams {
                let p = self.memory[stream * part + at..][..unit].as_ptr();
                if self.ahead > 0 {
                    let next = p.cast::<u8>().wrapping_add(self.ahead);
                    (0..unit * 4).step_by(64).for_each(|line| s.prefetch(next.wrapping_add(line)));
                }
                for (i, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `p` is of `unit` words, and this is a vector of them.
                    *sum = s.i_sub(*sum, unsafe { s.i_load(p.add(i * S::LANES)) });
                }
            }
        }
        sums.into_iter().map(|sum| s.reduce_add(s.i_to_f(sum))).sum()
    }
}

/// Operations in a second on each of the pool's threads, where all make products at once: `of_each` gives how many
/// operations it made.
fn rate(pool: &Pool, times: usize, of_each: &(dyn Fn() -> f64 + Sync)) -> f64 {
    let made = black_box(of_each());
    let seconds = least(times, || {
        pool.run(|_| {
            black_box(of_each());
        });
    });
    made / seconds
}

/// Products of matrix tiles of one group of 64 codes, from the cache to the cache, as the kernel makes them.
#[cfg(target_arch = "x86_64")]
fn tiles(steps: usize) -> f64 {
    use crate::arch::amx::{SIDE, Session};
    const GROUP: usize = 64;
    let session = Session::<GROUP>::new();
    let (rows, codes) = (black_box([1i8; SIDE * GROUP]), black_box([1u8; SIDE * GROUP]));
    let mut sums = [0i32; SIDE * SIDE];
    for _ in 0..steps {
        // SAFETY: all three arrays are whole, with rows of 64 bytes.
        unsafe { session.dot(rows.as_ptr(), GROUP, codes.as_ptr(), GROUP, sums.as_mut_ptr()) };
    }
    black_box(sums);
    (2 * steps * SIDE * SIDE * GROUP) as f64
}

/// Makes tiles of products: sums of `M` rows by `N` vectors. `product` adds one, of an operand in a register by one
/// that is read.
#[inline(always)]
fn products<A: Copy, const M: usize, const N: usize>(
    steps: usize,
    zero: A,
    product: impl Fn(A, usize, usize) -> A,
) -> [[A; N]; M] {
    let mut sums = [[zero; N]; M];
    for step in 0..steps {
        for (m, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = product(*sum, n, (step * M + m) % OPERANDS);
            }
        }
    }
    sums
}

/// Operations of so many products.
fn operations(products: [usize; 4]) -> f64 {
    2.0 * products.into_iter().product::<usize>() as f64
}

/// Products of F32, so many tiles.
struct Floats(usize);

impl Kernel for Floats {
    type Out = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let memory = black_box([1e-9f32; OPERANDS * crate::arch::MAX_LANES]);
        // SAFETY: `at` is below `OPERANDS`, each of at most `MAX_LANES` floats.
        let read = |at: usize| unsafe { s.load(memory.as_ptr().add(at * S::LANES)) };
        let zero = s.splat(black_box(0.0));
        if S::MANY_REGISTERS {
            let w: [S::F; 4] = std::array::from_fn(read);
            black_box(
                products::<_, 4, 4>(self.0, zero, |sum, n, at| s.fma(read(at), w[n], sum))
                    .map(|r| r.map(|v| s.reduce_add(v))),
            );
            operations([self.0, 4, 4, S::LANES])
        } else {
            let w: [S::F; 5] = std::array::from_fn(read);
            black_box(
                products::<_, 2, 5>(self.0, zero, |sum, n, at| s.fma(read(at), w[n], sum))
                    .map(|r| r.map(|v| s.reduce_add(v))),
            );
            operations([self.0, 2, 5, S::LANES])
        }
    }
}

/// Products of bytes, so many tiles.
struct Bytes(usize);

impl Kernel for Bytes {
    type Out = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let memory = black_box([0x0101_0101i32; OPERANDS * crate::arch::MAX_LANES]);
        // SAFETY: `at` is below `OPERANDS`, each of at most `MAX_LANES` words.
        let read = |at: usize| unsafe { s.i_load(memory.as_ptr().add(at * S::LANES)) };
        let zero = s.i_splat(black_box(0));
        let sum = |v: S::I| s.reduce_add(s.i_to_f(v));
        if S::MANY_REGISTERS {
            let w: [S::I; 4] = std::array::from_fn(read);
            black_box(
                products::<_, 4, 4>(self.0, zero, |a, n, at| s.dot_unsigned(a, w[n], read(at)))
                    .map(|r| r.map(sum)),
            );
            operations([self.0, 4, 4, 4 * S::LANES])
        } else {
            let w: [S::I; 5] = std::array::from_fn(read);
            black_box(
                products::<_, 2, 5>(self.0, zero, |a, n, at| s.dot_unsigned(a, w[n], read(at)))
                    .map(|r| r.map(sum)),
            );
            operations([self.0, 2, 5, 4 * S::LANES])
        }
    }
}

/// Products of BF16, so many tiles; the instruction sets that have them have many registers.
struct Brains(usize);

impl Kernel for Brains {
    type Out = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let memory = black_box([0x3080_3080i32; OPERANDS * crate::arch::MAX_LANES]);
        // SAFETY: `at` is below `OPERANDS`, each of at most `MAX_LANES` words.
        let read = |at: usize| unsafe { s.i_load(memory.as_ptr().add(at * S::LANES)) };
        let zero = s.splat(black_box(0.0));
        let w: [S::I; 4] = std::array::from_fn(read);
        black_box(
            products::<_, 4, 4>(self.0, zero, |a, n, at| s.dot_bf16(a, w[n], read(at)))
                .map(|r| r.map(|v| s.reduce_add(v))),
        );
        operations([self.0, 4, 4, 2 * S::LANES])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_a_rate() {
        let effort = Effort { bytes: 1 << 16, steps: 100, times: 2 };
        let limits = Limits::measure_with(1, effort).expect("one thread");
        assert_eq!((limits.isa, limits.threads), (Isa::detect(), 1));
        for rate in [limits.read_bytes, limits.f32_ops, limits.byte_ops, limits.bf16_ops.unwrap_or(1e9)] {
            assert!(rate.is_finite() && rate > 1e6, "{limits:?}");
        }
    }

    #[test]
    fn memory_is_read_whole_in_every_way() {
        let memory: Vec<i32> = (0..1024).collect();
        let wanted = -(0..1024).sum::<i32>() as f32;
        for isa in Isa::available() {
            for (streams, ahead) in [(1, 0), (1, 64), (4, 0), (4, 64)] {
                let sum = isa.dispatch(Read { memory: &memory, streams, ahead });
                assert_eq!(sum, wanted, "{isa}, {streams} streams, {ahead} bytes ahead");
            }
        }
    }
}
