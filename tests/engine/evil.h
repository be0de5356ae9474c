/* SPDX-License-Identifier: MIT */
/* The attacks of evil_engine.c, one for each kind of call. */
#ifndef TMESH_TEST_EVIL_H
#define TMESH_TEST_EVIL_H

#define EVIL_ATTACKS(A)                \
	/* files */                    \
	A(read_file)                   \
	A(write_file)                  \
	A(truncate_by_open)            \
	A(create_file)                 \
	A(make_nameless)               \
	A(truncate_path)               \
	A(unlink_path)                 \
	A(rename_path)                 \
	A(link_path)                   \
	A(symlink_path)                \
	A(make_folder)                 \
	A(make_node)                   \
	A(change_mode)                 \
	A(change_mode_by_fd)           \
	A(change_mode_anew)            \
	A(change_owner)                \
	A(change_times)                \
	A(change_old_times)            \
	A(set_attribute)               \
	A(lock_file)                   \
	A(watch_folder)                \
	A(name_by_handle)              \
	/* sockets */                  \
	A(connect_stream)              \
	A(connect_datagram)            \
	A(connect_abstract)            \
	A(send_by_pair)                \
	A(send_by_own_pair)            \
	A(connect_tcp)                 \
	A(open_netlink)                \
	A(bind_socket)                 \
	A(ask_for_socket)              \
	/* System V and POSIX */       \
	A(overwrite_segment)           \
	A(leave_segment)               \
	A(read_queue)                  \
	A(take_semaphore)              \
	A(open_posix_queue)            \
	/* other processes */          \
	A(signal_other)                \
	A(signal_thread)               \
	A(signal_by_thread)            \
	A(queue_signal)                \
	A(signal_group)                \
	A(signal_by_owner)             \
	A(trace)                       \
	A(read_memory)                 \
	A(write_memory)                \
	A(open_of_process)             \
	A(take_descriptor)             \
	A(move_to_core)                \
	A(schedule)                    \
	A(schedule_anew)               \
	A(renice)                      \
	A(renice_io)                   \
	A(limit_other)                 \
	A(join_group)                  \
	/* its own end */              \
	A(ignore_end)                  \
	A(leave_session)               \
	A(start_process)               \
	A(start_by_clone3)             \
	A(start_program)               \
	/* the kernel */               \
	A(use_io_uring)                \
	A(use_userfaults)              \
	A(use_bpf)                     \
	A(use_perf)                    \
	A(use_keys)                    \
	A(add_key)                     \
	A(change_namespace)            \
	A(mount_over)                  \
	A(mount_anew)                  \
	A(clone_tree)                  \
	A(list_mounts)                 \
	A(change_personality)          \
	A(hide_memory)                 \
	A(type_into_terminal)          \
	/* what it was started with */ \
	A(read_inherited)              \
	A(read_from_error)             \
	A(read_variable)               \
	A(use_capabilities)

#endif /* TMESH_TEST_EVIL_H */
