//! The guest's end of the event queues: buffers that are there or not, and what came in them.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// An asynchronous event: type and handle.
pub type Asynchronous = (u32, u32);
/// A completion event: vector, cqn, sequence.
pub type Completion = (u16, u32, u32);

/// What came, and how many more may come.
pub struct Events {
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    asynchronous_room: usize,
    completion_room: usize,
    asynchronous: Vec<Asynchronous>,
    completions: Vec<Completion>,
}

impl Default for Events {
    fn default() -> Self {
        Events {
            state: Mutex::new(State {
                asynchronous_room: usize::MAX,
                completion_room: usize::MAX,
                asynchronous: Vec::new(),
                completions: Vec::new(),
            }),
            came: Condvar::new(),
        }
    }
}

impl Events {
    /// The device delivers an asynchronous event. False if no buffer is there.
    pub fn put_asynchronous(&self, event: Asynchronous) -> bool {
        let mut state = self.state.lock().expect("events");
        if state.asynchronous_room == 0 {
            return false;
        }
        state.asynchronous_room -= 1;
        state.asynchronous.push(event);
        self.came.notify_all();
        true
    }

    /// The device delivers a completion event. False if no buffer is there.
    pub fn put_completion(&self, event: Completion) -> bool {
        let mut state = self.state.lock().expect("events");
        if state.completion_room == 0 {
            return false;
        }
        state.completion_room -= 1;
        state.completions.push(event);
        self.came.notify_all();
        true
    }

    /// From now on there are this many buffers on each queue.
    pub fn set_room(&self, asynchronous: usize, completion: usize) {
        let mut state = self.state.lock().expect("events");
        (state.asynchronous_room, state.completion_room) = (asynchronous, completion);
    }

    /// Buffers left on each queue.
    pub fn room(&self) -> (usize, usize) {
        let state = self.state.lock().expect("events");
        (state.asynchronous_room, state.completion_room)
    }

    /// Takes all asynchronous events.
    pub fn take_asynchronous(&self) -> Vec<Asynchronous> {
        std::mem::take(&mut self.state.lock().expect("events").asynchronous)
    }

    /// Takes all completion events.
    pub fn take_completions(&self) -> Vec<Completion> {
        std::mem::take(&mut self.state.lock().expect("events").completions)
    }

    /// Asynchronous events so far, left where they are.
    pub fn asynchronous(&self) -> Vec<Asynchronous> {
        self.state.lock().expect("events").asynchronous.clone()
    }

    /// Completion events so far, left where they are.
    pub fn completions(&self) -> Vec<Completion> {
        self.state.lock().expect("events").completions.clone()
    }

    /// Waits for a completion event of a CQ and takes it, as a process that sleeps in `ibv_get_cq_event` does. False after `timeout`.
    pub fn wait_for(&self, cqn: u32, timeout: Duration) -> bool {
        let state = self.state.lock().expect("events");
        let none = |state: &mut State| state.completions.iter().all(|event| event.1 != cqn);
        let (mut state, _) = self
            .came
            .wait_timeout_while(state, timeout, none)
            .expect("events");
        match state.completions.iter().position(|event| event.1 == cqn) {
            Some(at) => {
                state.completions.remove(at);
                true
            }
            None => false,
        }
    }
}
