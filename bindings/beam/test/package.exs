# SPDX-License-Identifier: MIT
#
# elixir package.exs PACKAGE CHECKOUT FOLDER: compile and release in FOLDER an application that depends on the packed
# package alone, and run it from there. A CHECKOUT is read and not written to. Prints TAP.

[package, checkout, folder] = Enum.map(System.argv(), &Path.expand/1)
{:ok, _started} = Agent.start_link(fn -> {0, 0} end, name: Results)

check = fn name, good, said ->
  count =
    Agent.get_and_update(Results, fn {count, bad} ->
      {count + 1, {count + 1, bad + if(good, do: 0, else: 1)}}
    end)

  IO.puts("#{if good, do: "ok", else: "not ok"} #{count} - #{name}")
  if not good, do: said |> String.split("\n") |> Enum.each(&IO.puts("# " <> &1))
end

# The application must not see the variables that make sets for this project.
clean =
  for name <- ~w(MIX_BUILD_PATH MIX_DEPS_PATH MIX_ENV MIX_QUIET MAKEFLAGS MAKELEVEL MFLAGS TMESH_NIF
                 MAKE_TERMERR MAKE_TERMOUT LD_LIBRARY_PATH),
      do: {name, nil}

run = fn program, args, opts ->
  System.cmd(
    program,
    args,
    [stderr_to_stdout: true, env: clean ++ (opts[:env] || [])] ++ Keyword.take(opts, [:cd])
  )
end

sources = fn folder ->
  for file <- Path.wildcard(Path.join(folder, "**"), match_dot: true),
      %File.Stat{type: :regular} = stat <- [File.stat!(file)],
      do: {file, stat.mtime, stat.size}
end

app = Path.join(folder, "app")
File.rm_rf!(folder)
File.mkdir_p!(Path.join(app, "lib"))

File.write!(Path.join(app, "mix.exs"), """
defmodule Stranger.MixProject do
  use Mix.Project

  def project do
    [app: :stranger, version: "0.1.0", deps: [{:tmesh, path: #{inspect(package)}}], escript: [main_module: Stranger.Main]]
  end

  def application, do: [extra_applications: [:logger]]
end
""")

File.write!(Path.join(app, "lib/stranger.ex"), """
defmodule Stranger do
  def run do
    {:ok, ref} = Tmesh.ZeroCopy.from_binary("abcd", {2, 2}, :u8, label: "a stranger's")
    {:ok, json} = Tmesh.ZeroCopy.TensorRef.to_json(ref)
    {:ok, same} = json |> Tmesh.ZeroCopy.TensorRef.from_json!() |> Tmesh.ZeroCopy.open()
    IO.puts("read: " <> Tmesh.ZeroCopy.to_binary!(same))
    # Held until here.
    :ok = Tmesh.ZeroCopy.release(ref)
    header = ~s({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})
    File.write!("w.safetensors", <<byte_size(header)::64-little, header::binary, "efgh">>)
    IO.puts("loaded: " <> Tmesh.ZeroCopy.to_binary!(Tmesh.Model.load!("w.safetensors")["w"]))
  end
end
""")

File.write!(Path.join(app, "lib/main.ex"), """
defmodule Stranger.Main do
  def main(_args), do: Stranger.run()
end
""")

# As on a machine without pkg-config. With it, mix goes on where it ended.
{said, status} =
  run.("mix", ["compile"],
    cd: app,
    env: [{"MIX_ENV", "prod"}, {"PKG_CONFIG", Path.join(folder, "pkg-config")}]
  )

check.(
  "mix compile without pkg-config fails, and says what to install",
  status != 0 and said =~ "no pkg-config",
  "status #{status}: " <> said
)

before = sources.(package)
{said, status} = run.("mix", ["escript.build"], cd: app, env: [{"MIX_ENV", "prod"}])
check.("mix builds an escript of an application that depends on the package", status == 0, said)
{said, status} = run.(Path.join(app, "stranger"), [], cd: folder)

check.(
  "the escript says that it carries no libraries, and what to run",
  status != 0 and said =~ "an escript carries no libraries, so run it as a release (mix release)",
  said
)

{said, status} = run.("mix", ["release", "--quiet"], cd: app, env: [{"MIX_ENV", "prod"}])
check.("mix release of an application that depends on the package", status == 0, said)

check.(
  "nothing was written beside the package's sources",
  sources.(package) == before,
  "something was"
)

release = Path.join(app, "_build/prod/rel/stranger")
carried = Path.wildcard(Path.join(release, "lib/tmesh-*/priv/tmesh_nif.so"))
check.("the release carries the NIF library", length(carried) == 1, inspect(carried))

# Move it away from its sources.
moved = Path.join(folder, "moved")
File.rename(release, moved)
File.rm_rf!(app)

{said, status} =
  run.(
    Path.join(moved, "bin/stranger"),
    ["eval", "Application.ensure_all_started(:tmesh); Stranger.run()"],
    cd: folder
  )

check.(
  "it runs elsewhere, when its project is gone",
  status == 0 and said =~ "read: abcd" and said =~ "loaded: efgh",
  said
)

before = sources.(checkout)

objects =
  for object <- ["nif/arena.o", "lib/layout.o", "model/files/types.o"],
      do: "#{folder}/checkout/#{object}"

{said, status} =
  run.(
    "make",
    ["-s", "-C", Path.join(checkout, "c_src"), "NIF=#{folder}/no.so", "OBJ=#{folder}/checkout"] ++
      objects,
    []
  )

check.("a checkout has the sources too", status == 0 and Enum.all?(objects, &File.exists?/1), said)
check.("nothing was written into it", sources.(checkout) == before, "something was")

make = ["-s", "-C", Path.join(package, "c_src"), "NIF=#{folder}/no.so", "OBJ=#{folder}/obj"]

for {flag, wanted} <- [
      {"CC=/nowhere/cc", "no C compiler"},
      {"PKG_CONFIG=/nowhere/pkg-config", "no pkg-config"},
      {"PKG_CONFIG_LIBDIR=/nowhere", "install libjansson-dev liburing-dev libxxhash-dev"},
      {"ERL_INCLUDE=/nowhere", "install erlang-dev"}
    ] do
  {said, status} = run.("make", make ++ [flag], [])
  check.("the error names a missing part: #{wanted}", status != 0 and said =~ wanted, said)
end

{count, bad} = Agent.get(Results, & &1)
IO.puts("1..#{count}")
File.rm_rf!(folder)
if bad > 0, do: System.halt(1)
