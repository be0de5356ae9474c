# SPDX-License-Identifier: MIT
formatters =
  if System.get_env("TMESH_TEST_TAP"), do: [Tmesh.TapFormatter], else: [ExUnit.CLIFormatter]

# One after the other: many look at counters of the whole VM.
# What is to come does, however long an emulated machine takes.
ExUnit.start(formatters: formatters, max_cases: 1, timeout: 600_000, assert_receive_timeout: 60_000)

# What the library tells at each start of the application is nothing to read here.
Logger.configure(level: :warning)

Tmesh.Case.patient()
