# coverage.sh calls this: coverage.pl [--tests] COVERAGE NIGHTLY SOURCE...
use strict;
use warnings;

my ($option, $coverage, $nightly, @sources) = @ARGV;
my @problems;

sub lines_of {
  open(my $file, '<', $_[0]) or die "$_[0]: $!\n";
  return map { s/\s+$//r } grep { !/^\s*(#|$)/ } <$file>;
}

# A pattern as doctest reads it: the whole name, * any text, ? any character.
sub matcher {
  my $expression = join('', map { $_ eq '*' ? '.*' : $_ eq '?' ? '.' : quotemeta } split(//, $_[0]));
  return qr/^$expression$/;
}

# Every case's name, and whether it is always skipped.
my %skipped;
for my $source (@sources) {
  open(my $file, '<', $source) or die "$source: $!\n";
  my $text = do { local $/; <$file> };
  while ($text =~ /TEST_CASE\(\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)([^{;]*)\{/g) {
    my ($literals, $decorators) = ($1, $2);
    $literals =~ s/"\s*"//g;
    $literals =~ s/^"|"\s*$//g;
    $skipped{$literals} = $decorators =~ /skip\((true)?\)/ ? 1 : 0;
  }
}

my @left_out = map { [$_, matcher(s/^\S+\s+//r)] } lines_of($nightly);
for my $entry (@left_out) {
  my ($line, $matcher) = @$entry;
  push @problems, "$nightly: \"$line\" is no test case" unless grep { /$matcher/ } keys %skipped;
}
my %in_gate;
for my $name (keys %skipped) {
  $in_gate{$name} = 1 unless $skipped{$name} || grep { $name =~ $_->[1] } @left_out;
}

# Rows begin a line; the names or patterns of the cases that hold a row follow it, indented.
my ($row, %held_by, @rows, %rows_of);
for my $line (lines_of($coverage)) {
  if ($line =~ /^\S/) {
    $row = $line;
    push @problems, "$coverage: the row \"$row\" stands twice" if $held_by{$row};
    $held_by{$row} = [];
    push @rows, $row;
    next;
  }
  my $pattern = $line =~ s/^\s+//r;
  my $matcher = matcher($pattern);
  my @cases = grep { /$matcher/ } keys %skipped;
  push @problems, "$coverage: \"$pattern\", which is to hold \"$row\", is no test case" unless @cases;
  for my $case (grep { $in_gate{$_} } @cases) {
    push @{$held_by{$row}}, $case;
    push @{$rows_of{$case}}, $row;
  }
}
for (@rows) {
  push @problems, "\"$_\" is held by no test case of the gate" unless @{$held_by{$_}};
}
my %numbers = map { /^FAULTS (\d+) / ? ($1 => 1) : () } @rows;
for my $number (1 .. 32) {
  push @problems, "$coverage: FAULTS $number is missing" unless $numbers{$number};
}

if ($option eq '--tests') {
  for my $case (sort keys %rows_of) {
    print "$case\n", map { "    $_\n" } @{$rows_of{$case}};
  }
}
if (@problems) {
  print STDERR "$_\n" for sort @problems;
  exit 1;
}
printf "%d rows of faults and traps are held by %d of the gate's %d test cases\n", scalar(@rows), scalar(keys %rows_of),
  scalar(keys %in_gate);
