# planted-errors.sh calls this: planted-cases.pl FILE... <TESTS, FILE being the tests' CMakeLists.txt and TESTS lines of an error's name, a
# tab, a program and a pattern. The program must be one of the tests, and each part of the pattern, which doctest divides at commas, must
# name a test case in its sources.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use test_cases;

my %sources_of = programs_of(map { ($_ => text_of($_)) } @ARGV);
my (%cases_of, $failed);
for my $line (<STDIN>) {
  chomp $line;
  my ($error, $program, $patterns) = $line =~ /^(.*)\t(\S+) (.*)$/ or die "no test: $line\n";
  if (!$sources_of{$program}) {
    print STDERR "$error: no CMakeLists.txt of the tests has a program $program\n";
    $failed = 1;
    next;
  }
  $cases_of{$program} //= [map { $_->[0] } map { cases_of(text_of($_)) } grep { -f } @{$sources_of{$program}}];
  for my $pattern (split(/(?<!\\),/, $patterns)) {
    my $matcher = matcher($pattern =~ s/\\,/,/gr);
    next if grep { /$matcher/ } @{$cases_of{$program}};
    print STDERR "$error: \"$pattern\" names no test case in the sources of $program\n";
    $failed = 1;
  }
}
exit($failed ? 1 : 0);
