//! Element-wise operations, in place: products and sums, functions, rounding to narrower types, copies.

use super::Out;
use super::functions::{gelu, gelu_tanh, sigmoid, silu, softplus, tanh};
use crate::arch::{Isa, Kernel, MAX_LANES, Simd};
use crate::pool::Share;
use std::ops::Range;
use tranship_backend::BF16_MAX;
use tranship_dtype::DType;
use tranship_program::ops::Unary;

/// What is done to each element.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Each<'a> {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · sigmoid(x) · other`.
    SiluMul(&'a [f32]),
    /// A function.
    Unary(Unary),
    /// A function of `x`, times `other`.
    UnaryMul(Unary, &'a [f32]),
    /// `x + other`, where each number of `other` meets `len` elements.
    AddParts { other: &'a [f32], len: usize },
    /// `x · other`, where each number of `other` meets `len` elements.
    MulParts { other: &'a [f32], len: usize },
    /// `x + other`; a shorter other is one row that meets every row.
    Add(&'a [f32]),
    /// `x · other`; a shorter other is one row that meets every row.
    Mul(&'a [f32]),
    /// Replaced by `other`.
    Copy(&'a [f32]),
    /// Rounded to F16 or BF16; a finite value stays finite.
    Round(DType),
}

/// An operation on every element of `x`, in place.
#[derive(Clone, Copy)]
pub(crate) struct Elementwise<'a> {
    pub(crate) x: Out<'a>,
    pub(crate) each: Each<'a>,
}

impl Elementwise<'_> {
    /// This thread's share of the elements.
    pub(crate) fn part(&self, isa: Isa, share: Share<'_>) {
        if let Each::SiluMul(other) | Each::UnaryMul(_, other) | Each::Copy(other) = self.each {
            assert_eq!(other.len(), self.x.len(), "as many operands as elements");
        }
        if let Each::Add(other) | Each::Mul(other) = self.each {
            assert!(!other.is_empty() && self.x.len().is_multiple_of(other.len()), "whole rows of operands");
        }
        if let Each::AddParts { other, len } | Each::MulParts { other, len } = self.each {
            assert_eq!(self.x.len(), other.len() * len, "a number for each part");
        }
        // Whole vectors of the widest machine, so that no two threads write one cache line.
        let range = share.range(self.x.len(), MAX_LANES);
        isa.dispatch(Elements { op: *self, range });
    }
}

struct Elements<'a> {
    op: Elementwise<'a>,
    range: Range<usize>,
}

impl Kernel for Elements<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Range { start, end } = self.range;
        // SAFETY: each element belongs to one thread.
        let x = unsafe { self.op.x.range(start..end) };
        match self.op.each {
            Each::Silu => map(s, x, |v| silu(s, v)),
            Each::SiluMul(other) => zip(s, x, &other[start..end], |v, o| s.mul(silu(s, v), o)),
            Each::Unary(f) => unary(s, x, f),
            Each::UnaryMul(f, other) => {
                unary(s, x, f);
                zip(s, x, &other[start..end], |v, o| s.mul(v, o));
            }
            Each::AddParts { other, len } => with_parts(x, start, len, |x, i| {
                let o = s.splat(other[i]);
                map(s, x, |v| s.add(v, o));
            }),
            Each::MulParts { other, len } => with_parts(x, start, len, |x, i| {
                let o = s.splat(other[i]);
                map(s, x, |v| s.mul(v, o));
            }),
            Each::Copy(other) => x.copy_from_slice(&other[start..end]),
            Each::Add(other) => with_rows(x, start, other, |x, o| zip(s, x, o, |v, o| s.add(v, o))),
            Each::Mul(other) => with_rows(x, start, other, |x, o| zip(s, x, o, |v, o| s.mul(v, o))),
            Each::Round(DType::F16) => x.iter_mut().for_each(|v| *v = round_f16(*v)),
            Each::Round(DType::BF16) => x.iter_mut().for_each(|v| *v = round_bf16(*v)),
            Each::Round(_) => {}
        }
    }
}

/// A function of every element.
#[inline(always)]
pub(crate) fn unary<S: Simd>(s: S, x: &mut [f32], f: Unary) {
    let zero = s.splat(0.0);
    match f {
        Unary::Gelu => map(s, x, |v| gelu(s, v)),
        Unary::GeluTanh => map(s, x, |v| gelu_tanh(s, v)),
        Unary::Sigmoid => map(s, x, |v| sigmoid(s, v)),
        Unary::Softplus => map(s, x, |v| softplus(s, v)),
        // The second operand is what the greater is of NaN and a number.
        Unary::Relu2 => map(s, x, |v| s.mul(s.max(zero, v), s.max(zero, v))),
        Unary::Softcap(cap) => {
            let (cap, over) = (s.splat(cap as f32), s.splat((1.0 / cap) as f32));
            map(s, x, |v| s.mul(cap, tanh(s, s.mul(v, over))));
        }
        Unary::Scale(by) => {
            let by = s.splat(by as f32);
            map(s, x, |v| s.mul(v, by));
        }
        Unary::Clamp { min, max } => {
            let min = s.splat(min.map_or(f32::NEG_INFINITY, |min| min as f32));
            let max = s.splat(max.map_or(f32::INFINITY, |max| max as f32));
            map(s, x, |v| s.min(max, s.max(min, v)));
        }
    }
}

#[inline(always)]
fn map<S: Simd>(s: S, x: &mut [f32], f: impl Fn(S::F) -> S::F) {
    for at in (0..x.len()).step_by(S::LANES) {
        let n = S::LANES.min(x.len() - at);
        // SAFETY: `n` values from `at` on are within `x`.
        unsafe {
            let p = x.as_mut_ptr().add(at);
            s.store_part(p, f(s.load_part(p, n)), n);
        }
    }
}

#[inline(always)]
fn zip<S: Simd>(s: S, x: &mut [f32], other: &[f32], f: impl Fn(S::F, S::F) -> S::F) {
    assert_eq!(x.len(), other.len());
    for at in (0..x.len()).step_by(S::LANES) {
        let n = S::LANES.min(x.len() - at);
        // SAFETY: `n` values from `at` on are within both.
        unsafe {
            let p = x.as_mut_ptr().add(at);
            s.store_part(p, f(s.load_part(p, n), s.load_part(other.as_ptr().add(at), n)), n);
        }
    }
}

/// Runs `f` on pieces of `x`, which starts at element `start`, with the piece of `other` that each meets.
#[inline(always)]
fn with_rows(mut x: &mut [f32], mut start: usize, other: &[f32], mut f: impl FnMut(&mut [f32], &[f32])) {
    while !x.is_empty() {
        let at = start % other.len();
        let (piece, rest) = x.split_at_mut((other.len() - at).min(x.len()));
        f(piece, &other[at..at + piece.len()]);
        start += piece.len();
        x = rest;
    }
}

/// Runs `f` on pieces of `x`, which starts at element `start`, with the index of the part that each belongs to.
#[inline(always)]
fn with_parts(mut x: &mut [f32], mut start: usize, len: usize, mut f: impl FnMut(&mut [f32], usize)) {
    while !x.is_empty() {
        let (piece, rest) = x.split_at_mut((len - start % len).min(x.len()));
        f(piece, start / len);
        start += piece.len();
        x = rest;
    }
}

/// The nearest half-precision value; a finite one stays finite.
#[inline(always)]
pub(crate) fn round_f16(v: f32) -> f32 {
    half::f16::from_f32(finite(v, 65_504.0)).to_f32()
}

/// The nearest BF16 value; a finite one stays finite.
#[inline(always)]
pub(crate) fn round_bf16(v: f32) -> f32 {
    half::bf16::from_f32(finite(v, BF16_MAX)).to_f32()
}

#[inline(always)]
fn finite(v: f32, limit: f32) -> f32 {
    if v.is_finite() { v.clamp(-limit, limit) } else { v }
}
