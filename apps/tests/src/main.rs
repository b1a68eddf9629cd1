//! The suite on the target: `tests [--lacks PART]... [NAME]...` runs the tests whose names contain one of these, or
//! all. Tests that need a part that the machine lacks are skipped, with a line that says so.
//!
//! Illegal calls come first: a kernel that fails at a wrong pointer invalidates every other result. The last line is
//! `N passed, N failed`; the exit status is 0 only if none failed.
#![no_std]
#![no_main]

extern crate alloc;

mod accounts;
mod acts;
mod allocation;
mod authority;
mod brink;
mod calls;
mod combining;
mod core_files;
mod coroutines;
mod disk;
mod edges;
mod ext4;
mod fairness;
mod file;
mod fork;
mod harness;
mod hostile;
mod illegal;
mod interrupt;
mod layout;
mod limits;
mod locks;
mod long;
mod memory;
mod models;
mod network;
mod numbers;
mod pipe;
mod positions;
mod preemption;
mod privilege;
mod process;
mod pseudo_terminal;
mod readiness;
mod relay;
mod ring;
mod scheduling;
mod server;
mod share;
mod shell;
mod signals;
mod storm;
mod terminal;
mod thread;
mod time;
mod user_interrupt;
mod worker;

use abi_unix::authority::Held;
use alloc::vec::Vec;
use cops::println;
use cops::time::Instant;

use harness::Test;

const TESTS: &[Test] = tests![
    illegal::calls;
    illegal::addresses;
    illegal::asynchronous_forms;
    numbers::structures_of_files_are_those_of_linux;
    numbers::structures_of_time_and_processes_are_those_of_linux;
    numbers::structures_of_sockets_are_those_of_linux;
    process::exit_status_reaches_the_parent;
    process::a_panic_ends_only_its_process;
    process::waiting_synchronously;
    process::processor_time_of_children;
    process::killing;
    process::killing_at_once;
    process::executing_another_program;
    process::orphans_are_taken_care_of;
    process::numbers;
    process::descriptors_are_passed_on;
    process::damaged_programs_are_refused;
    process::arguments_that_are_too_long_are_refused;
    process::the_c_program_is_right;
    process::many_at_once;
    process::hundreds_of_processes_leave_nothing_behind;
    authority::every_act_needs_its_capability;
    authority::processes_end_only_those_below_them;
    authority::capabilities_are_given_up_and_handed_down;
    authority::the_tree_has_a_depth;
    memory::pages_are_zero_and_come_at_their_first_use;
    memory::parts_can_be_unmapped_and_protected;
    memory::nothing_is_writable_and_executable;
    memory::code_can_be_made_and_made_anew;
    layout::addresses_are_others_each_time;
    layout::nothing_fits_below_the_stack;
    layout::kernel_addresses_are_not_told;
    memory::fixed_mappings;
    memory::files_can_be_mapped;
    memory::the_end_of_the_heap_moves;
    memory::faults_end_only_their_process;
    core_files::faults_leave_core_files;
    core_files::a_process_is_killed_while_it_writes_its_core_file;
    core_files::many_processes_die_at_once;
    memory::segments_are_common_and_go_with_their_last_mapping;
    memory::the_heap_serves_all_sizes;
    memory::exhaustion_is_an_error_or_the_end_of_its_cause;
    file::written_and_read_back;
    file::appending_and_exclusive_creation;
    file::positions_do_not_disturb_offsets;
    file::a_write_from_nowhere_leaves_the_file_alone;
    file::vectors;
    file::directories;
    file::programs_cannot_be_changed;
    file::devices;
    file::duplicates_share_a_position;
    file::descriptors_run_out;
    file::mounts;
    file::processes;
    file::pages_are_allocated_and_freed;
    file::owners_and_nice_values;
    disk::bytes_come_back;
    disk::its_end_and_errors;
    disk::many_transfers_are_under_way_at_once;
    disk::processes_end_in_the_middle_of_transfers;
    ext4::refusals_of_mount;
    ext4::files_come_back_after_an_unmount;
    ext4::a_file_without_a_name_lives_until_it_is_closed;
    ext4::many_names_in_a_directory;
    ext4::many_tasks_use_a_volume_at_once;
    ext4::processes_end_in_the_middle_of_operations;
    ext4::programs_run_from_a_volume;
    ext4::a_mapped_file_is_cut_off_beside_its_readers;
    pipe::synchronous;
    pipe::a_larger_pipe_keeps_its_bytes_in_their_order;
    pipe::asynchronous_as_in_the_papers;
    pipe::a_full_pipe_makes_writers_wait;
    pipe::the_end_wakes_waiters;
    pipe::a_ring_of_pipes;
    pipe::fifos_that_cannot_be_made_or_opened;
    pipe::the_sides_of_a_fifo_meet;
    pipe::processes_share_tokens_through_a_fifo;
    pipe::a_process_ends_while_it_opens_a_fifo;
    time::clocks_agree_and_go_forward;
    time::the_date_is_plausible;
    time::sleeping;
    time::many_sleepers_wake_in_order;
    time::deadlines_come_while_the_worker_is_busy;
    time::time_limits;
    time::intervals;
    time::the_clock_of_c_libraries_needs_no_call;
    calls::ready_calls_are_done_in_place;
    calls::errors_reach_the_awaiter_with_the_buffer;
    calls::a_dropped_call_lets_go_of_its_buffer;
    calls::dropped_calls_do_not_pile_up;
    calls::a_call_under_way_is_not_made_again;
    calls::dropped_at_every_await;
    calls::a_dropped_accept_leaves_no_connection;
    calls::more_completions_than_the_ring_holds;
    calls::cancelling_by_hand;
    calls::one_of_two;
    calls::completions_without_a_token_wake_by_cid;
    ring::wrong_sizes_and_numbers;
    ring::malformed_requests_complete_with_an_error;
    ring::the_completion_ring_can_grow;
    ring::a_full_request_ring_refuses_and_loses_nothing;
    ring::a_full_completion_ring_stops_the_taking;
    ring::indexes_that_cannot_be_break_the_ring;
    ring::the_kernel_s_words_are_not_read_by_it;
    ring::unmapping_the_ring_hides_it_only;
    ring::requests_are_taken_at_the_tick;
    ring::an_idle_hart_takes_requests;
    ring::a_sleeping_worker_s_requests_are_taken;
    ring::requests_that_were_not_taken_can_be_cancelled;
    ring::every_call_that_waits_works_through_the_ring;
    ring::calls_are_made_directly_until_it_pays;
    ring::all_at_once;
    ring::dropped_at_every_await;
    ring::more_in_flight_than_the_rings_hold;
    ring::every_worker_has_a_ring;
    ring::important_requests_do_not_wait_behind_others;
    ring::processes_end_with_requests_in_their_rings;
    ring::scribbling_while_the_kernel_takes;
    coroutines::the_most_important_runs_first;
    coroutines::the_schedulers_own_suite;
    coroutines::priorities_change_in_every_state;
    coroutines::results_and_cancellation;
    coroutines::waking_by_cid;
    coroutines::a_hundred_thousand;
    coroutines::futures_of_others_run_here;
    worker::all_workers_work;
    worker::there_is_a_limit;
    worker::values_pass_between_workers;
    worker::locks_exclude;
    worker::a_notification_is_kept_for_the_next;
    worker::a_sleeping_worker_is_woken;
    worker::a_long_poll_keeps_nothing_waiting;
    worker::a_call_that_waits_keeps_nothing_waiting;
    worker::idle_workers_use_no_time;
    worker::calls_from_all_workers;
    thread::illegal_calls;
    thread::results_stacks_and_numbers;
    thread::mutex_and_condition;
    thread::local_values_and_registers;
    thread::futexes_wake_the_chosen_waiters;
    thread::the_end_of_a_thread_is_told_at_its_words;
    thread::locks_with_owners_keep_threads_apart;
    thread::a_killed_process_passes_its_locks_on;
    thread::a_barrier_on_one_side_is_a_barrier_on_both;
    thread::a_thousand_at_once;
    thread::thousands_one_after_the_other;
    thread::ends_with_threads_in_flight;
    readiness::illegal_calls;
    readiness::level_edge_and_once;
    readiness::event_counters;
    readiness::events_of_files;
    readiness::waiters_are_woken;
    readiness::sockets;
    readiness::many_watched_and_closed;
    readiness::lists_of_descriptors;
    models::wrong_sides_are_refused;
    models::calls_wait_on_every_side;
    models::kernel_threads_come_and_go;
    models::servers_of_coroutines;
    models::servers_of_threads;
    interrupt::a_busy_worker_learns_of_completions;
    interrupt::a_busy_worker_learns_of_completions_behind_the_alarms;
    interrupt::less_important_completions_do_not_interrupt;
    interrupt::returning_without_an_interrupt_is_an_error;
    preemption::no_coroutine_is_put_aside_without_preemption;
    preemption::the_more_important_goes_first;
    preemption::equals_do_not_interrupt_each_other;
    preemption::signals_are_answered_at_once;
    preemption::one_inside_the_other;
    preemption::more_levels_than_stacks;
    preemption::floating_point_registers_are_kept;
    preemption::cancelled_while_put_aside;
    preemption::processes_end_with_a_coroutine_put_aside;
    preemption::with_several_workers;
    preemption::very_many;
    privilege::privileged_instructions_end_a_program;
    privilege::a_forged_translation_has_no_effect;
    privilege::registers_are_not_handed_on;
    privilege::less_privilege_is_allowed;
    user_interrupt::errors_come_first;
    user_interrupt::from_coroutine_to_coroutine;
    user_interrupt::between_workers;
    user_interrupt::between_processes;
    user_interrupt::a_flooded_receiver_goes_on;
    user_interrupt::what_comes_for_a_receiver_that_is_away_interrupts_no_other_program;
    user_interrupt::pages_for_sending_stay_where_they_are;
    user_interrupt::revoked_rights_are_worth_nothing;
    user_interrupt::ends_of_either_side;
    user_interrupt::as_many_receivers_as_there_can_be;
    user_interrupt::more_receiving_processes_than_the_hardware_serves;
    user_interrupt::a_program_without_its_interrupt_file_claims_nothing;
    user_interrupt::an_index_without_a_right_ends_a_program;
    user_interrupt::a_slot_that_its_owner_misuses_is_only_its_own;
    user_interrupt::nonsense_in_the_interrupt_words;
    user_interrupt::a_fault_in_the_handler_ends_only_its_process;
    user_interrupt::wakers_of_combinators;
    user_interrupt::on_one_hart_without_the_kernel;
    user_interrupt::between_harts_without_the_kernel;
    network::echo;
    network::synchronous_sockets;
    network::half_close;
    network::reset;
    network::refused;
    network::backlog;
    network::two_hundred_and_fifty_six_connections;
    network::hundreds_accept_on_one_listener;
    network::both_versions;
    network::datagrams;
    network::local_sockets;
    network::local_sockets_with_names;
    network::raw_sockets;
    network::local_connections_of_processes_that_are_killed;
    network::sockets_that_carry_each_other_are_closed;
    network::files_that_cannot_be_told_are_closed;
    network::options;
    network::closing_wakes_waiters;
    network::the_card_takes_part_in_six;
    edges::random_bytes_come_to_the_last_one;
    edges::a_vector_is_one_datagram;
    edges::a_short_vector_comes_out_of_a_pipe_together;
    edges::errors_of_truncating;
    edges::ending_in_several_places_at_once;
    edges::a_handler_takes_itself_away;
    fork::copies_of_clone3_begin_without_handlers;
    fork::children_of_vfork_use_their_parent_s_memory_until_they_execute;
    fork::descriptors_of_copies_tell_their_ends;
    fork::copies_see_no_later_writes_of_each_other;
    fork::copies_have_the_floating_point_registers;
    fork::the_kernel_writes_to_the_copy_of_its_caller;
    fork::threads_write_while_their_process_is_copied;
    fork::generations_of_copies_give_everything_back;
    fork::copies_start_other_programs_and_have_their_parent_s_signals;
    locks::processes_exclude_each_other;
    locks::the_dead_hold_no_locks;
    locks::timers_are_read;
    locks::timers_send_signals;
    relay::a_file_goes_through_a_pipe_and_is_copied;
    relay::a_sender_ends_in_the_middle;
    relay::what_cannot_be_spliced;
    relay::bytes_are_spliced_through_a_pipe_and_copied_by_tee;
    relay::a_splicing_process_ends_in_the_middle;
    signals::handlers_get_information_and_leave_the_registers;
    signals::blocked_signals_wait_and_come_in_order;
    signals::handlers_can_have_a_stack_of_their_own;
    signals::faults_are_signals_with_address_and_code;
    signals::interrupted_calls_end_or_are_made_again;
    signals::waits_for_signals;
    signals::signals_are_read_from_a_descriptor;
    signals::processes_stop_and_go_on;
    signals::frames_are_not_trusted;
    signals::a_storm_of_signals_disturbs_only_its_receiver;
    terminal::lines_are_edited_before_they_are_read;
    terminal::raw_keys_come_as_they_are;
    terminal::keys_end_the_foreground_only;
    terminal::the_background_waits_for_its_turn;
    terminal::an_orphan_in_the_background_gets_an_error;
    terminal::sessions_begin_without_a_terminal;
    terminal::groups;
    pseudo_terminal::a_pair_passes_keys_and_output;
    pseudo_terminal::an_end_notices_that_the_other_has_gone;
    pseudo_terminal::calls_wait_for_the_other_end;
    pseudo_terminal::it_controls_the_session_that_opens_it;
    pseudo_terminal::pairs_are_limited_and_charged;
    shell::statuses_and_connectors;
    shell::pipes_and_redirections;
    shell::words_are_expanded;
    shell::scripts_have_conditions_and_loops;
    shell::scripts_have_functions_and_patterns;
    shell::keys_make_lines;
    shell::the_interrupt_key_ends_the_command_and_not_the_shell;
    shell::the_stop_key_stops_a_job_that_can_go_on;
    shell::a_program_receives_signals_as_events;
    shell::a_dropped_child_is_killed_on_request;
    accounts::limits_are_checked_inherited_and_enforced;
    accounts::limits_of_others_need_privilege;
    accounts::with_no_memory_left_waits_go_on_and_things_are_given_back;
    accounts::calls_in_flight_have_a_limit;
    accounts::four_hoarders_disturb_no_other_process;
    accounts::the_killer_cannot_be_aimed;
    brink::all_harts_may_take_much_at_once;
    long::large_files_are_written_read_and_mapped_in_steps;
    long::parts_of_a_large_mapping_change_one_after_the_other;
    long::a_large_directory_is_read_some_entries_at_a_time;
    long::thousands_of_descriptors_are_polled_in_steps;
    long::a_process_that_polls_thousands_of_descriptors_can_be_killed;
    long::an_epoll_with_thousands_of_items_is_asked_and_closed_in_steps;
    long::one_file_watched_thousands_of_times_is_closed_in_steps;
    long::a_full_ring_is_taken_in_steps;
    long::thousands_of_waiters_are_woken_and_moved_in_steps;
    long::thousands_of_waiters_at_one_pipe_are_woken_in_portions;
    long::a_polling_thread_tries_thousands_of_transfers_in_steps;
    long::children_of_others_wake_no_waiter;
    long::a_parent_hears_of_its_own_children_only;
    long::untaken_console_lines_delay_no_process;
    limits::a_refused_accept_leaves_the_connection;
    limits::more_calls_than_may_be_in_flight;
    limits::a_hoarder_of_sockets_leaves_some_to_others;
    limits::a_hoarder_of_kernel_memory_is_ended_first;
    limits::hoarded_calls_leave_slots_for_processes;
    server::answers_every_order;
    server::bad_requests_cost_their_own_connection;
    server::peers_that_do_not_read_are_not_read_from;
    server::another_server_can_take_its_place;
    server::connections_come_and_go;
    hostile::nonsense_in_the_process_page;
    hostile::nonsense_in_the_completion_ring;
    hostile::processes_that_never_rest_share_the_machine;
    hostile::unimportant_calls_do_not_hold_an_end_up;
    hostile::unimportant_processes_do_not_delay_important_ones;
    combining::select_takes_what_comes_first;
    combining::calls_are_joined;
    combining::results_of_a_set_come_as_they_end;
    combining::a_scope_ends_after_its_coroutines;
    combining::a_token_ends_many;
    combining::all_receivers_of_a_broadcast_get_all_values;
    combining::the_last_value_is_always_seen;
    combining::lines_survive_reads_that_are_dropped;
    combining::a_time_limit_gives_the_buffer_back;
    combining::an_early_end_is_told_from_a_failure;
    combining::files_are_copied_and_trees_removed;
    combining::a_signal_ends_a_loop_of_strict_futures;
    combining::crates_of_others_find_what_they_need;
    scheduling::illegal_requests;
    scheduling::no_process_becomes_more_important_by_itself;
    scheduling::processor_time_is_counted;
    scheduling::strict_order_is_kept_between_processes;
    scheduling::no_hart_visits_a_less_important_process_while_another_waits;
    scheduling::modes_change_while_coroutines_run;
    scheduling::the_system_s_mode_reaches_a_busy_process;
    scheduling::forged_bitmaps_count_for_no_more_than_the_ceiling;
    scheduling::a_used_up_budget_puts_a_process_behind_all_others;
    scheduling::snapshots_name_running_coroutines;
    positions::illegal_questions;
    positions::coroutines_tell_where_and_since_when_they_wait;
    scheduling::the_holder_of_a_lock_is_as_important_as_its_waiter;
    scheduling::inheritance_goes_through_several_locks;
    scheduling::events_and_waiters_meet_at_keys;
    scheduling::a_spinner_that_claims_everything_leaves_others_their_share;
    scheduling::many_spinners_cannot_starve_anybody;
    fairness::a_given_budget_cannot_be_replaced;
    fairness::a_process_cannot_refill_its_budget;
    fairness::a_polling_thread_is_charged;
    fairness::a_retrying_thread_is_charged;
    fairness::calls_in_flight_are_charged;
    fairness::threads_do_not_multiply_turns;
    fairness::an_exhausted_process_is_not_preferred;
    fairness::a_crowd_that_claims_everything_holds_back_no_process;
    fairness::several_starving_processes_share_the_bound;
    hostile::a_million_random_calls;
];

/// Beginnings of the names of tests that need a part of the machine, and the part.
const NEEDS: [(&str, &str); 3] = [("disk::", "disk"), ("ext4::", "disk"), ("time::the_date_is_plausible", "clock")];

/// Tests for one hart whose clock counts instructions, so that a busy host changes nothing: `tests --counted`.
const COUNTED: &[Test] = tests![
    fairness::calls_of_every_family_keep_within_a_budget;
];

/// Tests for the kernel that fails allocations on request: `tests --failing-allocations`.
const FAILING_ALLOCATIONS: &[Test] = tests![
    allocation::every_call_is_tried;
    allocation::of_synchronous_calls;
    allocation::of_asynchronous_calls;
    allocation::of_calls_through_the_ring;
    allocation::of_first_calls;
];

#[cops::main]
async fn main() -> i32 {
    let arguments: Vec<&str> = cops::arguments().skip(1).map(|text| text.to_str().unwrap_or("?")).collect();
    match arguments[..] {
        ["--one", name] => one(name).await,
        ["--act", name] => acts::act(name, None).await,
        ["--act", name, argument, ..] => acts::act(name, Some(argument)).await,
        ["--list"] => {
            TESTS.iter().for_each(|test| println!("{}", test.name));
            0
        }
        ["--counted", ref names @ ..] => counted(names).await,
        ["--failing-allocations", ref names @ ..] => suite(FAILING_ALLOCATIONS, names).await,
        ref names => suite(TESTS, names).await,
    }
}

/// Runs one test in this process, and prints its failure.
async fn one(name: &str) -> i32 {
    let Some(test) = TESTS.iter().chain(COUNTED).chain(FAILING_ALLOCATIONS).find(|test| test.name == name) else {
        println!("there is no test `{name}`");
        return 2;
    };
    // A test's children do not inherit the capabilities that the suite gives the test.
    let held = cops::system::authority::held(0).map(|held| Held::of(held.permitted));
    if let Err(error) = held.and_then(|held| cops::system::authority::set(0, held)) {
        println!("{name}: its capabilities cannot be kept from others: {error}");
        return 1;
    }
    // The suite may not have begun to wait for this process; some tests read counters of the whole machine.
    cops::sleep(core::time::Duration::from_millis(3)).await;
    match (test.body)().await {
        Ok(()) => 0,
        Err(reason) => {
            println!("{name}: {reason}");
            1
        }
    }
}

/// Runs the tests for a clock that counts, in this process: orphans are its children, so it can tell their time.
async fn counted(names: &[&str]) -> i32 {
    let (mut passed, mut failed) = (0, 0);
    for test in COUNTED.iter().filter(|test| names.is_empty() || names.iter().any(|name| test.name.contains(name))) {
        let start = Instant::now();
        if harness::report(test, start, (test.body)().await) { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed");
    i32::from(failed > 0 || passed == 0)
}

/// Runs the tests whose names contain one of these. None of them is a failure, unless another table has them.
async fn suite(tests: &[Test], mut names: &[&str]) -> i32 {
    let mut lacking = Vec::new();
    while let ["--lacks", part, rest @ ..] = names {
        lacking.push(*part);
        names = rest;
    }
    let is_chosen = |test: &&Test| names.is_empty() || names.iter().any(|name| test.name.contains(name));
    let chosen = tests.iter().filter(is_chosen);
    // Some tests affect other processes. A suite without the authority reports that when they fail.
    if let Ok(held) = cops::system::authority::held(0) {
        let _ = cops::system::authority::set(0, Held { inheritable: held.permitted, ..held });
    }
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for test in chosen {
        let needed = NEEDS.iter().find(|(beginning, _)| test.name.starts_with(beginning));
        if let Some((_, part)) = needed.filter(|(_, part)| lacking.contains(part)) {
            println!("test {} ... skipped: the machine has no {part}", test.name);
            skipped += 1;
            continue;
        }
        if harness::run(test).await { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed");
    i32::from(failed > 0 || passed + skipped == 0 && !COUNTED.iter().any(|test| is_chosen(&test)))
}
