# SPDX-License-Identifier: MIT
formatters =
  if System.get_env("TMESH_TEST_TAP"), do: [Tmesh.TapFormatter], else: [ExUnit.CLIFormatter]

# Run one test after the other: many look at counters of the whole VM. Expected messages do come, however long an
# emulated machine takes.
ExUnit.start(formatters: formatters, max_cases: 1, timeout: 600_000, assert_receive_timeout: 60_000)

# Hide the library's messages at each start of the application.
Logger.configure(level: :warning)

Tmesh.Case.patient()
