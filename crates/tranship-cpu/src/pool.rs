//! Persistent threads that run one piece of work together.
//!
//! [`Pool::run`] hands the same closure to every thread, the caller's among them, with its [`Share`] of the work,
//! and returns when all are done. Nothing is spawned or allocated per call. Workers wait by spinning for some
//! tens of microseconds, then park. [`Share::barrier`] lets a closure run several dependent steps in one call.
//!
//! The partition is static: which thread does what depends on the share alone.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Spins before a waiting thread gives its core away; about 30 µs.
const SPINS: usize = 4_000;

/// Threads that stay; see the module's introduction.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(Thread, Option<JoinHandle<()>>)>,
    /// Held by the caller of [`Pool::run`]: one piece of work at a time.
    turn: Mutex<()>,
}

/// A thread's part of a piece of work: part `index` of `of`.
#[derive(Clone, Copy)]
pub struct Share<'a> {
    index: usize,
    of: usize,
    meeting: &'a Meeting,
}

impl Share<'_> {
    /// The number of this thread, below [`Share::of`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many threads work together.
    pub fn of(&self) -> usize {
        self.of
    }

    /// This thread's part of `0..total` in multiples of `unit` (the last may be cut short).
    pub fn range(&self, total: usize, unit: usize) -> Range<usize> {
        let units = total.div_ceil(unit);
        let at = |i: usize| (units * i / self.of * unit).min(total);
        at(self.index)..at(self.index + 1)
    }

    /// Waits until every thread of this piece of work has come here.
    ///
    /// # Panics
    /// When another thread of the same work has panicked.
    pub fn barrier(&self) {
        self.meeting.wait(self.of);
    }
}

/// Where threads meet in the middle of a piece of work.
#[derive(Default)]
struct Meeting {
    arrived: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
}

impl Meeting {
    fn wait(&self, of: usize) {
        if of == 1 {
            return;
        }
        let round = self.round.load(Acquire);
        if self.arrived.fetch_add(1, AcqRel) + 1 == of {
            self.arrived.store(0, Relaxed);
            self.round.store(round.wrapping_add(1), Release);
            return;
        }
        wait_until(|| {
            assert!(!self.broken.load(Relaxed), "another thread of this work has panicked");
            self.round.load(Acquire) != round
        });
    }
}

/// Spins until `done`, giving the core away now and then.
fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0;
    while !done() {
        spins += 1;
        if spins % SPINS == 0 {
            thread::yield_now();
        } else {
            spin_loop();
        }
    }
}

/// A piece of work as the workers see it.
type Job = *const (dyn Fn(Share<'_>) + Sync);

struct Shared {
    /// Counts pieces of work; a change is the signal to begin.
    epoch: AtomicUsize,
    /// The present piece; written before `epoch` changes, while no worker is at work.
    job: UnsafeCell<Option<Job>>,
    /// Workers that are not done yet.
    remaining: AtomicUsize,
    /// Workers that are parked, or about to be.
    sleeping: AtomicUsize,
    meeting: Meeting,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    threads: usize,
}

// SAFETY: `job` is written only by the thread that holds `Pool::turn`, while `remaining` is 0, and is published by
// the release store of `epoch`; the closure behind it is `Sync` and outlives the work, for `run` waits for the end.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed during `run`.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] counted: `threads - 1` are started.
    ///
    /// # Errors
    /// Whatever the system says when it will not start a thread.
    ///
    /// # Panics
    /// When `threads` is 0.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        assert!(threads > 0, "a pool needs a thread");
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            remaining: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            meeting: Meeting::default(),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            threads,
        });
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle =
                thread::Builder::new().name(format!("tranship-{index}")).spawn(move || shared.work(index))?;
            pool.workers.push((handle.thread().clone(), Some(handle)));
        }
        Ok(pool)
    }

    /// How many threads work together.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `f` on every thread at once, each with its share, and returns when all are done.
    ///
    /// One call at a time: others wait for their turn, and a call from inside `f` never gets it.
    ///
    /// # Panics
    /// With the panic of any thread, once all have stopped.
    pub fn run<F: Fn(Share<'_>) + Sync>(&self, f: F) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let own = Share { index: 0, of: shared.threads, meeting: &shared.meeting };
        if shared.threads == 1 {
            return f(own);
        }
        let job: *const (dyn Fn(Share<'_>) + Sync + '_) = &f;
        // SAFETY: only the lifetime changes; the workers stop using the closure before this function ends.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(Share<'_>) + Sync + '_), Job>(job) };
        // SAFETY: this thread has the turn and no worker is at work, so nobody reads or writes `job` now.
        unsafe { *shared.job.get() = Some(job) };
        shared.remaining.store(shared.threads - 1, Relaxed);
        shared.epoch.fetch_add(1, SeqCst);
        if shared.sleeping.load(SeqCst) > 0 {
            self.workers.iter().for_each(|(worker, _)| worker.unpark());
        }
        let result = catch_unwind(AssertUnwindSafe(|| f(own)));
        if result.is_err() {
            shared.meeting.broken.store(true, SeqCst);
        }
        wait_until(|| shared.remaining.load(Acquire) == 0);
        let worker_panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if result.is_err() || worker_panic.is_some() {
            shared.meeting.broken.store(false, Relaxed);
            shared.meeting.arrived.store(0, Relaxed);
        }
        drop(turn);
        match (worker_panic, result) {
            (Some(panic), _) | (None, Err(panic)) => resume_unwind(panic),
            (None, Ok(())) => {}
        }
    }
}

impl Shared {
    /// What a worker does until the pool is dropped.
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.wait_for_work(seen);
            seen = seen.wrapping_add(1);
            if self.stop.load(Relaxed) {
                return;
            }
            // SAFETY: the epoch changed, which published `job`; it is not written again before this worker
            // counts itself out of `remaining`.
            let job = unsafe { (*self.job.get()).expect("work is set before its epoch begins") };
            let share = Share { index, of: self.threads, meeting: &self.meeting };
            // SAFETY: `Pool::run` keeps the closure alive until `remaining` is 0.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(share) }));
            if let Err(panic) = result {
                // Only the first panic is told: the others may be of barriers that it broke.
                if !self.meeting.broken.swap(true, SeqCst) {
                    self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                }
            }
            self.remaining.fetch_sub(1, Release);
        }
    }

    /// Spins, then parks, until the epoch is no longer `seen`.
    fn wait_for_work(&self, seen: usize) {
        for _ in 0..SPINS {
            if self.epoch.load(Acquire) != seen {
                return;
            }
            spin_loop();
        }
        // The order matters: say "sleeping" first, then look again. `run` changes the epoch first, then looks for
        // sleepers; one of the two sees the other.
        self.sleeping.fetch_add(1, SeqCst);
        while self.epoch.load(SeqCst) == seen {
            thread::park();
        }
        self.sleeping.fetch_sub(1, SeqCst);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.epoch.fetch_add(1, SeqCst);
        for (thread, handle) in &mut self.workers {
            thread.unpark();
            if let Some(handle) = handle.take() {
                // A worker catches the panics of its work, so it ends without one.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_runs_once_for_each_call() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            let counts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..200 {
                pool.run(|share| {
                    assert_eq!(share.of(), threads);
                    counts[share.index()].fetch_add(1, Relaxed);
                });
            }
            assert!(counts.iter().all(|c| c.load(Relaxed) == 200));
        }
    }

    #[test]
    fn ranges_cover_everything_once_in_whole_units() {
        let meeting = Meeting::default();
        for (total, unit, of) in [(0, 4, 3), (1, 4, 3), (17, 4, 3), (64, 16, 5), (100, 1, 7)] {
            let mut next = 0;
            for index in 0..of {
                let range = Share { index, of, meeting: &meeting }.range(total, unit);
                assert_eq!(range.start, next);
                assert!(range.start.is_multiple_of(unit) || range.is_empty());
                next = range.end;
            }
            assert_eq!(next, total);
        }
    }

    #[test]
    fn a_barrier_separates_steps() {
        let pool = Pool::new(3).unwrap();
        let (first, second) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(|share| {
            for round in 1..=100 {
                first.fetch_add(1, Relaxed);
                share.barrier();
                assert_eq!(first.load(Relaxed), 3 * round);
                second.fetch_add(1, Relaxed);
                share.barrier();
                assert_eq!(second.load(Relaxed), 3 * round);
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|share| {
                    assert!(share.index() != bad, "thread {bad} has had enough");
                    share.barrier();
                });
            }));
            assert!(result.is_err());
        }
        let ran = AtomicUsize::new(0);
        pool.run(|share| {
            share.barrier();
            ran.fetch_add(1, Relaxed);
        });
        assert_eq!(ran.load(Relaxed), 3);
    }
}
